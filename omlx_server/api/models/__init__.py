"""The loaded models as routes use them."""
