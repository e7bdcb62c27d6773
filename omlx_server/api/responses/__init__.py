"""The Responses API: a conversation as items, kept between requests."""
