"""The items of a conversation: read, stored, and turned into chat messages."""
