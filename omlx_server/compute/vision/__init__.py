"""Images: what is loaded beside a language model for them, and how they enter it."""
