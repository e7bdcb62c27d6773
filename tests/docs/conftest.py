"""One real server with a tiny model by the name of the starter, and a home for each block."""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from omlx_server.models.bundled.embedded import ensure
from omlx_server.models.catalogue import MINILM
from omlx_server.settings import Settings
from scripts.reference.served import Served, ask
from tests.adapters import save_adapter
from tests.api.conftest import CHATML
from tests.api.harness import ADMIN_TOKEN, ServerProcess, serving, wait_for
from tests.text import makers
from tests.tiny_models import make_model, save_tiny

NAME = "starter"
# Models that the pages speak of, which are not here.
STAND_FOR_IT = ("mlx-community/Qwen3-0.6B-4bit", "Qwen3-4B-4bit")
CONFIG = """\
# My settings.
[models]
aliases = { small = "starter", "gpt-4o" = "starter" }
"""
TALK = [
    {"role": "system", "content": "You are the keeper of a lighthouse at the end of the world."},
    {"role": "user", "content": "Tell me about the sea. " * 8},
]


@dataclass(frozen=True, slots=True)
class Documented:
    """A running server. `stored`: a cold tier with the blocks of TALK; `archive`: TALK as a file.
    `told`: what the server said when nobody had asked anything else."""

    server: ServerProcess
    model: Path
    stored: Path
    archive: Path
    told: Served


@pytest.fixture(scope="session")
def documented(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Documented]:
    folder = tmp_path_factory.mktemp("documented")
    model = makers.save(folder / "models" / NAME, "byte_level", CHATML)
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    save_tiny(model, "llama", vocab_size=vocab)
    save_adapter(model / "adapters" / "writer", make_model("llama", vocab_size=vocab)[0])
    (model.parent / MINILM.name).symlink_to(ensure(MINILM, Settings().models.dirs[0]))
    sets = (
        f"models.dirs={model.parent}",
        f"models.embedding={MINILM.name}",
        "models.use_hf_cache=false",
        "memory.activation_reserve=64MB",
        "cache.cold_write_through=true",
    )
    # docs/adapters.md calls it so, since a copy of the starter would have the starter's own name.
    aliases = '[models.aliases]\nmy-model = "starter"\n'
    with serving(str(model), folder / "server", *sets, config=aliases) as server:
        told = ask(server.url)
        server.post({**request(), "max_tokens": 8}).raise_for_status()
        kept = folder / "server" / "kv"
        wait_for(lambda: _is_written(server) and _is_at_rest(kept))
        stored = shutil.copytree(kept, folder / "stored")
        archive = folder / "talk.omlx"
        exported = server.http.post(f"{server.url}/v1/cache/export", json=request())
        archive.write_bytes(exported.raise_for_status().content)
        yield Documented(server, model, stored, archive, told)


def request() -> dict[str, Any]:
    return {"model": NAME, "messages": TALK}


def _is_written(server: ServerProcess) -> bool:
    text = server.http.get(f"{server.url}/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    written = float(values["omlx_cache_written_blocks_total"])
    return written > 0 and float(values["omlx_cache_write_queue_bytes"]) == 0


def _is_at_rest(directory: Path) -> bool:
    """What comes and goes while it is copied would be missed."""
    before = _listed(directory)
    time.sleep(0.3)
    return _listed(directory) == before


def _listed(directory: Path) -> set[str]:
    return {name for _, _, names in os.walk(directory) for name in names}


@pytest.fixture
def home(documented: Documented, tmp_path: Path) -> Path:
    """A home with a config, stored blocks and the model, and the files that pages speak of."""
    cache = tmp_path / ".cache" / "omlx_server"
    shutil.copytree(documented.stored, cache / "kv", symlinks=True)
    shutil.copytree(documented.model, cache / "models" / NAME)
    (tmp_path / "my-model").symlink_to(documented.model)
    config = tmp_path / ".config" / "omlx_server" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(CONFIG, encoding="utf-8")
    config.chmod(0o600)
    shutil.copy(config, tmp_path / "omlx.toml")
    hosts = [{"ssh": "studio-1", "ips": ["10.0.0.1"]}, {"ssh": "studio-2", "ips": ["10.0.0.2"]}]
    (tmp_path / "hosts.json").write_bytes(orjson.dumps(hosts))
    (tmp_path / "talk.json").write_bytes(orjson.dumps(TALK))
    (tmp_path / "request.json").write_bytes(orjson.dumps(request()))
    shutil.copy(documented.archive, tmp_path)
    (tmp_path / "system.txt").write_text(_as_prompt(), encoding="utf-8")
    (tmp_path / ".curlrc").write_text("fail\nsilent\nshow-error\n", encoding="utf-8")
    return tmp_path


def _as_prompt() -> str:
    return "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in TALK)


@pytest.fixture
def environ(documented: Documented, home: Path) -> dict[str, str]:
    """Of a user who has installed the package and serves on another port than the usual one."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("OMLX_", "XDG_"))}
    programs = [str(Path(sys.executable).parent)]
    if shutil.which("curl") is None:
        programs.append(str(Path(__file__).parent / "bin"))
    return own | {
        "HOME": str(home),
        "PATH": os.pathsep.join([*programs, own["PATH"]]),
        "EDITOR": "true",
        "NO_COLOR": "1",
        "OMLX_SERVER__PORT": documented.server.url.rpartition(":")[2],
        "OMLX_ADMIN_TOKEN": ADMIN_TOKEN,
    }
