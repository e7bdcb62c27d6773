"""Images: vision towers, and how their features enter a language model."""
