"""`omlx-server chat` and `launch`: talk to a model, start programs that do."""
