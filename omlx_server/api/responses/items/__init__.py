"""Items of a conversation: as they come, as they are kept, as messages of a chat."""
