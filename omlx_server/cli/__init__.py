"""The command line. `app` declares all commands and imports little. The code of a command is
imported when it runs, so that `--help` never waits for mlx, transformers or fastapi."""
