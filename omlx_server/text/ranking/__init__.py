"""Makes the inputs of models that embed or rank texts."""
