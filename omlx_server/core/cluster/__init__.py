"""Messages between the processes that compute one model together. Pure."""
