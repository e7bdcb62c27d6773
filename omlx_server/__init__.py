"""omlx_server: an OpenAI-compatible LLM server on MLX for people's daily work."""

__version__ = "0.1.0"
