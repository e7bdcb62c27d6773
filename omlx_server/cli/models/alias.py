"""`omlx-server alias`: other names of models, in the config file."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from omlx_server.cli.config.show import say
from omlx_server.cli.shell.options import load_settings
from omlx_server.cli.shell.output import show_json
from omlx_server.errors import ConfigError, UsageError
from omlx_server.models import catalogue
from omlx_server.models.bundled.embedded import MINILM
from omlx_server.models.hub.hub import HUB
from omlx_server.models.installed import installed_models
from omlx_server.models.locate import unknown
from omlx_server.settings import Settings, check_text, edit, read_config

_KEY = "models.aliases"
Change = Callable[[Any], None]


_LONGEST = 200


def run(*, name: str, target: str, remove: str, as_json: bool, config: Path | None) -> int:
    if remove and (name or target):
        raise UsageError("--remove stands alone", hint="omlx-server alias --remove NAME")
    if name and not target:
        raise UsageError(f"what should {name} stand for?", hint="omlx-server alias NAME TARGET")
    if remove:
        words = _remove(remove, config)
    elif name:
        words = _add(name, target, config)
    else:
        return _show(config, as_json=as_json)
    if as_json:
        _show(config, as_json=True)
    else:
        print(words)
    _warn(config)
    return 0


def _show(config: Path | None, *, as_json: bool) -> int:
    """Those that stand now."""
    aliases = load_settings(config).settings.models.aliases
    if as_json:
        show_json(aliases)
    elif aliases:
        print("\n".join(f"{name} -> {target}" for name, target in sorted(aliases.items())))
    else:
        print("There are none. `omlx-server alias NAME TARGET` makes one.")
    return 0


def _add(name: str, target: str, config: Path | None) -> str:
    """What was done, in words."""
    settings = load_settings(_readable(config)).settings
    _check(name, target, settings)

    def add(aliases: Any) -> None:
        aliases[name] = target

    file = _changed(config, add)
    return f"{name} -> {target}  # {file}"


def _remove(name: str, config: Path | None) -> str:
    aliases = load_settings(_readable(config)).settings.models.aliases
    if name not in aliases:
        there = ", ".join(sorted(aliases))
        raise UsageError(
            f"there is no alias {name}", hint=f"there is {there}" if there else "there is none"
        )

    def take(table: Any) -> None:
        table.pop(name, None)

    file = _changed(config, take)
    return f"{name} is forgotten  # {file}"


def _readable(config: Path | None) -> Path | None:
    """A file that was named and is not there yet will be made."""
    return config if config is None or config.exists() else None


def _check(name: str, target: str, settings: Settings) -> None:
    """Raises UsageError unless the name is free and the target is here."""
    models = settings.models
    odd = name.startswith((".", "/", "~")) or any(p in ("", ".", "..") for p in name.split("/"))
    if odd or not name.isprintable() or name != name.strip() or len(name) > _LONGEST:
        raise UsageError(
            f"{name!r} can't be a name", hint="letters, digits and signs, as in gpt-4o"
        )
    if target in models.aliases:
        raise UsageError(
            f"{target} is an alias itself", hint=f"it stands for {models.aliases[target]}"
        )
    known = {row.name for row in catalogue.CATALOGUE}
    known |= {row.full_name for row in catalogue.CATALOGUE} | {MINILM.name, MINILM.full_name}
    for model in installed_models(models.dirs, models.use_hf_cache):
        known.update(model.names)
    if name in known:
        raise UsageError(f"a model has the name {name} already", hint="choose another one")
    if target not in known:
        error = unknown(target, models.dirs, models.use_hf_cache, HUB)
        hint = f"`omlx-server pull {target}` first" if "/" in target else error.hint
        raise UsageError(f"there is no model {target} here", hint=hint)


def _warn(config: Path | None) -> None:
    origin = load_settings(config).origins[_KEY]
    if origin.startswith("env "):
        say(f"warning: {origin} wins over it")


# --- The config file -----------------------------------------------------------------------------


def _changed(config: Path | None, change: Change) -> Path:
    """The file, written with aliases that have changed and nothing else."""
    file = edit.file_to_change(config)
    before = read_config(file) if file.exists() else ""
    after = with_aliases(before, change, file)
    check_text(after, file)
    edit.write_config(file, after)
    return file


def with_aliases(text: str, change: Change, file: Path) -> str:
    """`text` after `change` was done to its table models.aliases, which is made where it is not.

    Raises:
        ConfigError: the file is wrong, or something else would change with it.
    """
    try:
        document = tomlkit.parse(text)
        models = document.setdefault("models", tomlkit.table())
        if "aliases" not in models:
            models["aliases"] = tomlkit.inline_table()
        change(models["aliases"])
        after = document.as_string()
        _check_only(text, after, change)
    except (TOMLKitError, tomllib.TOMLDecodeError, ValueError, TypeError, AttributeError):
        check_text(text, file)  # says where its TOML is wrong
        raise ConfigError(
            f"{_KEY} can't be changed in {file} without harm to the rest of it",
            hint="`omlx-server config edit` opens it in an editor",
        ) from None
    return after


def _check_only(before: str, after: str, change: Change) -> None:
    """Raises ValueError if the change made of the values is another one."""
    expected = tomllib.loads(before)
    change(expected.setdefault("models", {}).setdefault("aliases", {}))
    if expected != tomllib.loads(after):
        raise ValueError("another key has changed")
