"""The pool of models, loaded on demand and unloaded for others. Lives on the event loop's
thread."""
