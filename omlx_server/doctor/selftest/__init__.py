"""The self-test of `omlx-server doctor --model NAME`: it loads a model as `serve` would, and checks
on this machine what the server promises. `run.py` has the order of the checks."""
