"""`omlx-server chat` and `launch`: talk to a model, and start programs that talk to it."""
