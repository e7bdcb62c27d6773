"""From an image to the arrays that a model's tower takes, after the model's own
`preprocessor_config.json`. Each family of models has a file; `families.py` says which one is whose.

The arrays equal those of transformers' processors on Pillow and numpy, which the tests run beside.
"""
