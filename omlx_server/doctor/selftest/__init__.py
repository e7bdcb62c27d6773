"""The self-test of `omlx-server doctor --model NAME`. `run.py` has the order of the checks."""
