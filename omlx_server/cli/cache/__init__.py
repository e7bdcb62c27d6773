"""`omlx-server cache`: the blocks on disk, prompts as archives."""
