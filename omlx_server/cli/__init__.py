"""The command line. `app` holds its whole surface and is light; what a command does is imported
when that command runs, so that `--help` never waits for mlx, transformers or fastapi."""
