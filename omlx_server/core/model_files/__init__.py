"""What the files of a model say of its kind, without reading a weight. Pure."""
