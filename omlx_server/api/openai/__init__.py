"""The OpenAI-compatible routes, but for the Responses API."""
