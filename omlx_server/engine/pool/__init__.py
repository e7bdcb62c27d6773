"""Several models in one engine: loaded when they are asked for, unloaded for others."""
