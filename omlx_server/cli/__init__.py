"""The command line. `--help` never waits for heavy imports: a command imports its code when it
runs."""
