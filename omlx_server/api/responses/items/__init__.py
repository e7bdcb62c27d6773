"""The items of a conversation: read from a request, stored, turned into messages of a chat."""
