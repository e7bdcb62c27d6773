"""`omlx-server chat`: talks to a model in the terminal."""
