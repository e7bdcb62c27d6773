"""The coding agents that `launch` starts: which package each is, what it is asked for, and where it
tells the size of the context that it reckons with."""

import json
import os
import re
import shutil
import sys
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tests.clients import installation
from tests.clients.installation import NoNode
from tests.scripted_models import call_of

PLACE = Path(sys.prefix) / "agents"
_NOTES_SERVER = Path(__file__).parent / "notes_mcp.py"
ANSWER = "The note counts seven geese, and no more."
NOTE = "There are seven geese on the lake.\n"
_EDITED = "There are eight geese on the lake."
_ASKS = ("How many geese does note.txt count?", "Look again: how many are there now?")
Arguments = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Agent:
    """A package of npm or of PyPI, the version that was tried, and what is asked of it.

    `turns` are the arguments of two turns of one conversation. `call` is the text of the call that
    the model makes for the note at a path. An agent without tools has an `answer` that edits the
    note. `context` is the context that the agent tells, in tokens, by its home directory and by
    what it said in a turn or to the command `asks`.
    """

    name: str
    package: str
    version: str
    turns: tuple[Arguments, Arguments]
    context: Callable[[Path, str], int]
    call: Callable[[Path], str] | None = None
    answer: str = ANSWER
    expected: str = "seven geese"
    asks: Arguments = ()
    is_npm: bool = True
    talk_context: int = 24_576
    """Tokens of the context for a talk that is longer than it."""
    least_cached: float = 0.9
    """The part of the second turn's prompts that must come from the cache."""
    program: str = ""
    """What `launch` starts, where the name is another."""

    @property
    def place(self) -> Path:
        return PLACE / self.launches

    @property
    def launches(self) -> str:
        return self.program or self.name

    @property
    def bin(self) -> Path:
        """The directory with the agent's program."""
        return self.place / ("node_modules/.bin" if self.is_npm else "bin")

    @property
    def is_installed(self) -> bool:
        return (self.bin / self.launches).exists()


def install(agent: Agent, *, newest: bool = False) -> None:
    """Install the version that was tried, or the newest. Quick when it is there already. Raises
    NotInstalled, and NoNode."""
    joint = "@" if agent.is_npm else "=="
    wanted = f"{agent.package}{joint}{agent.version}"
    if newest:
        wanted = f"{agent.package}@latest" if agent.is_npm else agent.package
    place = agent.place
    if not newest and agent.is_installed and installation.is_stamped(place, wanted):
        return
    shutil.rmtree(place, ignore_errors=True)
    if agent.is_npm:
        _install_node(agent.name, wanted, place)
    else:
        venv.create(place, with_pip=True)
        pip = (str(place / "bin" / "python"), "-m", "pip", "install", "--quiet")
        installation.run(agent.name, *pip, wanted, cwd=place)
    installation.stamp(place, wanted)


def _install_node(name: str, wanted: str, place: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NoNode("skipped: npm is not on the PATH")
    place.mkdir(parents=True)
    (place / "package.json").write_text("{}", encoding="utf-8")
    installation.run(name, npm, "install", "--no-audit", "--no-fund", wanted, cwd=place)


def environment(agent: Agent, home: Path) -> Mapping[str, str]:
    """The variables for an agent in a home of its own, without the keys of whoever runs it."""
    path = os.pathsep.join((str(agent.bin), os.environ.get("PATH", os.defpath)))
    return {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8", "TERM": "dumb"}


# --- The sizes that they tell --------------------------------------------------------------------


def _of_claude(home: Path, said: str) -> int:
    (usage,) = json.loads(said)["modelUsage"].values()
    return int(usage["contextWindow"])


def _of_codex(home: Path, said: str) -> int:
    """Codex takes 95 % of what it is told for the conversation."""
    logs = sorted(home.glob(".codex/sessions/**/*.jsonl"))
    told = re.findall(r'"model_context_window":(\d+)', logs[-1].read_text(encoding="utf-8"))
    return round(int(told[-1]) / 0.95)


def _of_opencode(home: Path, said: str) -> int:
    (told,) = re.findall(r'"context": (\d+)', said)
    return int(told)


def _of_aider(home: Path, said: str) -> int:
    (told,) = re.findall(r"([\d,]+) tokens max context window size", said)
    return int(told.replace(",", ""))


# --- The agents ----------------------------------------------------------------------------------

_CLAUDE = Agent(
    name="claude",
    package="@anthropic-ai/claude-code",
    version="2.1.332",
    turns=(
        ("-p", "--output-format", "json", _ASKS[0]),
        ("-p", "--output-format", "json", "--continue", _ASKS[1]),
    ),
    call=lambda note: call_of("Read", {"file_path": str(note)}),
    context=_of_claude,
    talk_context=65_536,  # with less it sums up the conversation before each answer
)
# Its sandbox needs rights that containers do not have.
_CODEX_EXEC = ("exec", "--strict-config", "--skip-git-repo-check", "-s", "danger-full-access")
_CODEX = Agent(
    name="codex",
    package="@openai/codex",
    version="0.171.0",
    turns=((*_CODEX_EXEC, _ASKS[0]), (*_CODEX_EXEC, "resume", "--last", _ASKS[1])),
    call=lambda note: call_of("exec_command", {"cmd": f"cat {note}"}),
    context=_of_codex,
)
# Tools of MCP servers come in a namespace.
_NOTES = (
    *("-c", f"mcp_servers.notes.command={json.dumps(sys.executable)}"),
    *("-c", f"mcp_servers.notes.args={json.dumps([str(_NOTES_SERVER), 'note.txt'])}"),
)
_CODEX_MCP = replace(
    _CODEX,
    name="codex_mcp",
    program="codex",
    turns=(
        (*_CODEX_EXEC, *_NOTES, _ASKS[0]),
        (*_CODEX_EXEC, *_NOTES, "resume", "--last", _ASKS[1]),
    ),
    call=lambda note: call_of("mcp__notes__read_note", {}),
)
_OPENCODE = Agent(
    name="opencode",
    package="opencode-ai",
    version="1.18.33",
    turns=(("run", _ASKS[0]), ("run", "--continue", _ASKS[1])),
    call=lambda note: call_of("read", {"filePath": str(note)}),
    context=_of_opencode,
    asks=("models", "omlx", "--verbose"),
    talk_context=32_768,
)
_AIDER_EDIT = ("--yes-always", "--no-git", "--no-pretty", "--restore-chat-history", "note.txt")
_AIDER = Agent(
    name="aider",
    package="aider-chat",
    version="0.86.2",
    turns=(
        (*_AIDER_EDIT, "--message", "Make it eight geese."),
        (*_AIDER_EDIT, "--message", "Write it once more."),
    ),
    answer=f"Here it is:\n\nnote.txt\n```\n{_EDITED}\n```\n",
    expected=_EDITED,
    context=_of_aider,
    asks=(*_AIDER_EDIT, "--message", "/tokens"),
    is_npm=False,
    talk_context=16_384,
    least_cached=0.5,  # it puts the files behind the conversation
)

_ALL = (_CLAUDE, _CODEX, _CODEX_MCP, _OPENCODE, _AIDER)
AGENTS: Mapping[str, Agent] = {agent.name: agent for agent in _ALL}
