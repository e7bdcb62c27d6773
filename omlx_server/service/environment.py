"""Chooses the shell's variables that a service gets: paths and addresses, but no secrets, since
every user may read the service's file."""

import os.path
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from omlx_server.settings.types import XDG_VARIABLES

HF_HOME = "HF_HOME"
_HUB_CACHE = "HF_HUB_CACHE"
_DIRECTORIES = (HF_HOME, _HUB_CACHE)
_FILES = ("HF_TOKEN_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_ADDRESSES = ("HF_ENDPOINT", *_PROXIES, *map(str.lower, _PROXIES))
# Control characters, lone surrogates, and what no XML may hold.
_UNSAYABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@dataclass(frozen=True, slots=True)
class Environment:
    """A service's `variables`, and the `directories` among them. `left`: a sentence for each
    variable that it does not get."""

    variables: tuple[tuple[str, str], ...] = ()
    directories: tuple[Path, ...] = ()
    left: tuple[str, ...] = ()


def environment_of(shell: Mapping[str, str], *, home: Path, here: Path) -> Environment:
    """Return the service's part of `shell`. Paths become absolute: `~` is `home`, relative ones
    count from `here`."""
    places = _hub(shell) | {name: shell[name] for name in _FILES if shell.get(name)}
    places |= {
        name: shell[name] for name in XDG_VARIABLES if Path(shell.get(name, "")).is_absolute()
    }
    paths = {name: _absolute(text, home, here) for name, text in places.items()}
    candidates = paths | {name: shell[name] for name in _ADDRESSES if shell.get(name)}
    variables = {name: text for name, text in candidates.items() if not _why_left(name, text)}
    hub = Path(variables.get(HF_HOME, home / ".cache" / "huggingface"))
    return Environment(
        tuple(variables.items()),
        tuple(dict.fromkeys(Path(variables[name]) for name in _DIRECTORIES if name in variables)),
        (
            *_tokens(shell, variables, hub),
            *filter(None, (_why_left(*each) for each in candidates.items())),
        ),
    )


def _hub(shell: Mapping[str, str]) -> dict[str, str]:
    cache = shell.get("XDG_CACHE_HOME")
    hub = shell.get(HF_HOME) or (cache and f"{cache}/huggingface")
    models = shell.get(_HUB_CACHE) or shell.get("HUGGINGFACE_HUB_CACHE")
    return {name: text for name, text in ((HF_HOME, hub), (_HUB_CACHE, models)) if text}


def _absolute(text: str, home: Path, here: Path) -> str:
    """Return the absolute path, without "..": systemd ignores a path with it."""
    start, _, below = text.partition("/")
    return os.path.normpath(home / below if start == "~" else here / text)


def _why_left(name: str, text: str) -> str:
    if name in _ADDRESSES and "@" in text:
        return (
            f"the service will not see {name}: there is a password in it, which the service's file "
            "must not hold; name a proxy that asks for none"
        )
    if not is_sayable(text):
        return f"the service will not see {name}: a service's file can't hold its characters"
    return ""


def _tokens(shell: Mapping[str, str], variables: Mapping[str, str], hub: Path) -> Iterator[str]:
    file = variables.get("HF_TOKEN_PATH", hub / "token")
    for name in _TOKENS:
        if shell.get(name):
            yield (
                f"the service will not see {name}, as its file must hold no token: "
                f"`hf auth login` keeps it in {file}, where the service finds it"
            )


def is_sayable(text: str) -> bool:
    """Whether both a systemd unit and a property list can hold the text."""
    return _UNSAYABLE.search(text) is None
