"""Vision towers in plain MLX, which compute what an image is to a language model."""
