"""Chat templates: messages to the text of a prompt."""
