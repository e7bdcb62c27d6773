"""Facts that a model's files tell without loading weights. Pure."""
