"""The account of memory: the bytes that each model and job holds or has reserved."""
