"""Text to token ids, fast and without stopping other threads."""
