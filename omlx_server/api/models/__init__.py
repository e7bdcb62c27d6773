"""The models of the server as routes use them."""
