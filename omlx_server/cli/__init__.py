"""The command line. A command imports its code when it runs, so that `--help` is quick."""
