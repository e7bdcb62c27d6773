"""The self-test of `omlx-server doctor --model NAME`: loads a model as `serve` would and checks it.
`run.py` has the order of the checks."""
