"""The format GGUF: its head, its types of tensors, and the models that it describes. Pure."""
