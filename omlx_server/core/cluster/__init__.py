"""What the processes tell each other that compute one model together. Pure."""
