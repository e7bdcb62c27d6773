"""The parts of `chat` for an interactive terminal, which load rich and prompt_toolkit."""
