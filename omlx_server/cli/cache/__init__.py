"""`omlx-server cache`: commands for the cache blocks on disk and for archives of prompts."""
