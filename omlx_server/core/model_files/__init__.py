"""What the files of a model tell about its kind and its parsers, without any weight. Pure."""
