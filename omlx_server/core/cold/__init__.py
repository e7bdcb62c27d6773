"""What the cold tier is known to hold, and what is read back from it. Pure."""
