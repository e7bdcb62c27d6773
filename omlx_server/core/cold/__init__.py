"""The index of the cold tier, and reads from it. Pure."""
