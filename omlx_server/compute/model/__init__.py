"""A model directory becomes a model in memory, with names of what it is."""
