"""The commands of docs/replicas.md as a campaign runs them: with addresses of this machine in the
place of the page's, and without what opens a program to other machines."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.docs.blocks import ROOT, blocks_of
from tests.docs.commands import Command, commands_of

PAGE = "docs/replicas.md"
ROUTERS = ("sglang-router", "vllm-router")
_PREFIX = "OMLX_"
_REMOTE = "cache.remote"
# Options that a campaign leaves out, with their values.
_OPENS = ("--bind", "--requirepass")
_ADDRESSES = ("--host", "--port", "--worker-urls")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the page says. `redis`: options of redis-server. `serve`: the settings of a server, as
    `section.key=value`, but for the store's URL. `packages`: the requirement of each router;
    `routers`: the words behind its name, but for addresses. `keys`: of the page's servers."""

    redis: tuple[str, ...]
    serve: tuple[str, ...]
    key: str
    packages: Mapping[str, str]
    routers: Mapping[str, tuple[str, ...]]

    def server_settings(self, remote: str) -> tuple[str, ...]:
        """All settings of one server that shares the store at a URL."""
        return (*self.serve, f"{_REMOTE}={remote}")

    def router_command(self, name: str, program: str, port: int, urls: Iterable[str]) -> list[str]:
        """The command of a router on `port` of this machine, before the servers at `urls`."""
        where = ("--host", "127.0.0.1", "--port", str(port))
        return [program, *self.routers[name], *where, "--worker-urls", *urls]


def read() -> Recipe:
    """The recipe of the page. Raises AssertionError where the page has no such command, or two."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    blocks = [block for block in blocks_of(text, PAGE) if block.language == "sh"]
    commands = [command for block in blocks for command in commands_of(block)]
    serve = _only(commands, "omlx-server serve")
    settings = dict(_of_environment(serve.environ)) | dict(_sets(serve.words))
    assert settings.pop(_REMOTE), "the page's servers share no store"
    installs = [command.words[-1] for command in commands if command.begins_with("pip install")]
    return Recipe(
        redis=_without(_only(commands, "redis-server").words[1:], _OPENS),
        serve=tuple(f"{name}={value}" for name, value in settings.items()),
        key=settings["auth.api_keys"],
        packages={name: _only_one(installs, name) for name in ROUTERS},
        routers={name: _without(_only(commands, name).words[1:], _ADDRESSES) for name in ROUTERS},
    )


def _only(commands: Sequence[Command], begin: str) -> Command:
    (found,) = (command for command in commands if command.begins_with(begin))
    return found


def _only_one(requirements: Sequence[str], name: str) -> str:
    (found,) = (one for one in requirements if one.startswith(f"{name}=="))
    return found


def _of_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in environ.items():
        assert name.startswith(_PREFIX), name
        section, key = name.removeprefix(_PREFIX).lower().split("__")
        yield f"{section}.{key}", value


def _sets(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for option, value in pairwise(words):
        if option == "--set":
            name, _, setting = value.partition("=")
            yield name, setting


def _without(words: Sequence[str], options: Sequence[str]) -> tuple[str, ...]:
    """The words but for some options and their values."""
    kept: list[str] = []
    skips = False
    for word in words:
        if word.startswith("--"):
            skips = word in options
        if not skips:
            kept.append(word)
    return tuple(kept)
