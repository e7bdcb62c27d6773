"""What the pages say of scripts/: that a script is there, can be started, and knows its options."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from typer.main import get_command

from scripts.benchmarks.__main__ import app as bench
from tests.docs.blocks import ROOT
from tests.docs.commands import Command, judge, sub_command

_PROGRAM = re.compile(r'-m omlx_server (.+) "\$@"')
"""How a script becomes a command of the program."""
_CLIENTS = ROOT / "tests" / "clients"


def look_at(command: Command) -> None:
    """Raises where the script would refuse, or where there is none."""
    name, *rest = command.words
    path = ROOT / name
    assert os.access(path, os.X_OK), f"{path} can't be started"
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0
    script = path.read_text(encoding="utf-8")
    behind = _PROGRAM.search(script)
    if behind:
        judge((*behind[1].split(), *rest), command.environ)
    elif name == "scripts/bench":
        _of_bench(rest)
    else:
        for word in rest:
            assert _is_known(word, rest, script + _behind(name)), f"{word} of {command}"


def _of_bench(words: list[str]) -> None:
    below: Any
    below, rest = sub_command(get_command(bench), words)
    assert not hasattr(below, "commands") or not rest or rest[0].startswith("-"), words
    below.make_context("scripts/bench", rest)


def _behind(name: str) -> str:
    """What else names the words that a script knows."""
    if name == "scripts/campaign":
        return (ROOT / "tests" / "campaigns" / "__main__.py").read_text(encoding="utf-8")
    if name == "scripts/test":
        return " ".join(path.stem for path in (_CLIENTS / "requirements").iterdir())
    return ""


def _is_known(word: str, words: list[str], text: str) -> bool:
    """A path is there; the value of an option is whatever it is."""
    if "/" in word:
        return Path(ROOT, word).exists()
    before = words[words.index(word) - 1] if words.index(word) else ""
    if re.fullmatch(r"--\w+", before) and re.fullmatch(r"\d+", word):
        return True
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None
