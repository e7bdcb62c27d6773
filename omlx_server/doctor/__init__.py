"""What `omlx-server doctor` finds: facts of the machine in, findings out. Pure but for `probe`,
which is a program of its own, so that an MLX that crashes crashes nothing else."""
