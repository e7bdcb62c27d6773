"""Refuses keys that are none, and suggests those that were probably meant."""

import difflib

from omlx_server.errors import ConfigError
from omlx_server.settings.sections import FIELDS, KEYS, SECTIONS

SEE_ALL = "`omlx-server config show` lists every key"
_ALIASES = "models.aliases."
_ONE_LETTER_OFF = 0.92  # the similarity of two names when one lacks a letter


def check_key(dotted: str, origin: str) -> None:
    """Raise ConfigError, with the nearest key as hint, unless `dotted` is a key."""
    if dotted not in FIELDS:
        raise unknown_key_error(dotted, origin)


def unknown_key_error(name: str, origin: str) -> ConfigError:
    if name in SECTIONS:
        hint = f"`omlx-server config get {name}` shows its keys"
        return ConfigError(f"{name} is a section, not a key", hint=hint)
    noun = "key" if "." in name else "section or key"
    where = f" ({origin})" if origin else ""
    near = nearest(name)
    hint = f"did you mean {near}?" if near else SEE_ALL
    if name.startswith(_ALIASES):
        hint = "`omlx-server alias NAME TARGET` makes an alias, `omlx-server alias` shows all"
    return ConfigError(f"unknown {noun} {name}{where}", hint=hint)


def nearest(name: str) -> str | None:
    """Return the key or section that was probably meant: one that is a letter off, else one of
    the same name in another section, else a similar one, else one with a similar last part."""
    if near := difflib.get_close_matches(name, KEYS, n=1, cutoff=_ONE_LETTER_OFF):
        return near[0]
    last = name.rpartition(".")[2]
    same_key = [key for key in KEYS if key.endswith(f".{last}")]
    if same_key:
        return difflib.get_close_matches(name, same_key, n=1, cutoff=0)[0]
    if similar := difflib.get_close_matches(name, (*SECTIONS, *KEYS), n=1):
        return similar[0]
    by_last = {key.rpartition(".")[2]: key for key in KEYS}
    similar_last = difflib.get_close_matches(last, by_last, n=1)
    return by_last[similar_last[0]] if similar_last else None
