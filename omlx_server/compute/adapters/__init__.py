"""LoRA adapters of a loaded model: their weights, and forwards in which each row has its own."""
