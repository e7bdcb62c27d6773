"""`omlx-server serve`: settings and a progress bar in, then the built server until it ends."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from omlx_server.cli import lazy
from omlx_server.cli.options import load_settings
from omlx_server.cli.progress import Display, open_display

STARTER = "starter"


def run(
    *, model: str, flags: Mapping[str, str | None], config: Path | None, sets: Sequence[str]
) -> int:
    """`flags` by the keys of the settings that they stand for."""
    loaded = load_settings(config, sets, flags)
    name = model or loaded.settings.models.default or STARTER
    with open_display() as display:
        server = lazy.load("build.server")
        code: int = server.serve(loaded, name, progress=display, ready=partial(_ready, display))
    return code


def _ready(display: Display, url: str, model: str) -> None:
    display.close()
    print(f"omlx-server is ready: {url}/v1 serves {model} (Ctrl-C ends it)", flush=True)
