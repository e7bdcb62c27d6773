"""The program `omlx-server`, and `python -m omlx_server`."""

from omlx_server.cli.app import main

if __name__ == "__main__":
    main()
