"""What the files of a model tell about its kind, its parsers and its vision tower, without any
weight. Pure."""
