"""The pool of models, loaded on demand and unloaded for others. Event loop thread."""
