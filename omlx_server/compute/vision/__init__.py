"""Vision towers: what they compute of an image's pixels, and how that enters a language model."""
