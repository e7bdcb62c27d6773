"""One turn of a conversation, for all chat APIs alike: prompt, sampling, tools, answer."""
