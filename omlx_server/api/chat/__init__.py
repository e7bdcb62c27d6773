"""One turn of a conversation, the same for all chat APIs."""
