"""Chat templates: they turn messages into the text of a prompt."""
