"""What an answer must look like, as a mask of allowed tokens: structured output, forced tools."""
