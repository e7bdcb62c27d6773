"""Ollama's API below /api, translated to the chat core and back."""
