"""How much memory a model's steps take: probed at load, then estimated."""
