"""The checks of `omlx-server doctor`: each turns facts about the machine into a `Finding`.
`network` and `storage` also look the facts up. `probe` is a program of its own, so that a crash of
MLX ends only that. `selftest` loads a model and tests it; `shareable` is the form of its report."""
