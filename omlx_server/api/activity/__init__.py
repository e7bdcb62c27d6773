"""What the server is doing, for those who look: requests at work and done, memory, caches."""
