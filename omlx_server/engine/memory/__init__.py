"""The account of memory: how many bytes each model and job holds or has reserved."""
