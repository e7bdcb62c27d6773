"""Makes the arrays for a model's tower by its `preprocessor_config.json`, equal to transformers'
processors."""
