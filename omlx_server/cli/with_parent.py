"""The program as a child: it ends when its stdin does, so with its parent, however that ends."""

import os
from threading import Thread

from omlx_server.cli.app import main


def _end_with_stdin() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    Thread(target=_end_with_stdin, daemon=True).start()
    main()
