"""Machines of a cluster that are directories of this one, and an `ssh` that reaches them. It takes
the place of the real one: the command lines that it runs are those of the server, and so are the
ranks."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.api.harness import REPO
from tests.text import makers
from tests.tiny_models import save_tiny

MODEL = "org/tiny"
_HEADS = {"num_attention_heads": 6, "num_key_value_heads": 6}  # for two ranks and for three
# Called with four options, each of two words, then HOST and COMMAND.
_SSH = """\
#!/bin/sh
shift 8
cd "{folder}/$1" || exit 1
case $1 in
  locked) echo "$1: Permission denied (publickey)." >&2; exit 255 ;;
  silent) exec sleep 600 ;;
  bare) PATH=/usr/bin:/bin ;;
  old) PYTHONPATH="{folder}/old/packages:$PYTHONPATH" ;;
esac
exec sh -c "$2"
"""
_PROGRAM = """\
#!/bin/sh
exec "{python}" -m omlx_server "$@"
"""


class Machines:
    """Each has its own directory of models, which is `models` in its home. Those with the model of
    the first one are `here` and `studio`; `other` has another one of the same name, `bare` no
    program, `old` another mlx-lm. `locked` refuses the key, and `silent` never answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
        for name, layers in (("here", 2), ("other", 1)):
            path = makers.save(folder / name / "models" / MODEL, "byte_level")
            save_tiny(path, "llama", vocab_size=vocab, num_hidden_layers=layers, **_HEADS)
        for name in ("studio", "old", "bare", "locked", "silent"):
            (folder / name).mkdir()
            (folder / name / "models").symlink_to(folder / "here" / "models")
        other = folder / "old" / "packages" / "mlx_lm-9.9.dist-info"
        other.mkdir(parents=True)
        (other / "METADATA").write_text("Metadata-Version: 2.1\nName: mlx-lm\nVersion: 9.9\n")
        self._programs = folder / "bin"
        self._programs.mkdir()
        for name, text in (("ssh", _SSH), ("omlx-server", _PROGRAM)):
            program = self._programs / name
            program.write_text(text.format(folder=folder, python=sys.executable))
            program.chmod(0o700)

    def enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Be at the first one."""
        monkeypatch.setenv("HOME", str(self.folder / "here"))
        monkeypatch.chdir(self.folder / "here")
        monkeypatch.setenv("OMLX_MODELS__DIRS", "models")
        monkeypatch.setenv("PATH", f"{self._programs}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("PYTHONPATH", str(REPO))

    def hosts(self, names: Sequence[str], **ips: str) -> str:
        """A hosts file with these machines behind the first. `ips` are those that are not
        127.0.0.1."""
        entries = [{"ssh": name, "ips": [ips.get(name, "127.0.0.1")]} for name in ("", *names)]
        file = self.folder / f"{'-'.join(names)}.json"
        file.write_text(json.dumps(entries))
        return str(file)
