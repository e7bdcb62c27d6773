"""The bytes that each model and job holds or has reserved. Lives on the mlx thread."""
