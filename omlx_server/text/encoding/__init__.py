"""Turns text into token ids, fast and without stopping other threads, and back."""
