"""The checks of `omlx-server doctor`. `selftest` loads a model and tests it; `cluster` checks
machines."""
