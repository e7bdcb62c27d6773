"""What `chat` needs on an interactive terminal alone: rich and prompt_toolkit are loaded here."""
