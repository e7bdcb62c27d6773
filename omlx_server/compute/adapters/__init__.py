"""LoRA adapters of a loaded model, with a different one for each row of a forward."""
