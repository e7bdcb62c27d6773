"""`omlx-server config set`: one key of the config file."""

from pathlib import Path

from omlx_server.cli.config import say, warn, written
from omlx_server.cli.options import load_settings
from omlx_server.settings import edit


def run(*, key: str, value: str, config: Path | None) -> int:
    file = edit.file_to_change(config)
    print(f"{key} = {written(key, edit.set_key(file, key, value))}  # {file}")
    loaded = load_settings(file)
    warn(loaded)
    if loaded.origins[key].startswith("env "):
        say(f"warning: {loaded.origins[key]} wins over it")
    return 0
