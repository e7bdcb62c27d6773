"""One turn of a conversation, whatever protocol asks for it: prompt, sampling, tools, answer."""
