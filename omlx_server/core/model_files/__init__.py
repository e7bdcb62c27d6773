"""Facts that a model's files tell without loading weights: its kind, parsers, quantisation and
vision tower. Pure."""
