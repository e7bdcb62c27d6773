"""The pool of models in one engine: loaded when asked for, unloaded for others."""
