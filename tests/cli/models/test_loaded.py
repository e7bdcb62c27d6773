"""`ps`, `load`, `unload`, `pin`, and `rm` beside a server, which here is a small stand-in that
speaks the admin routes over HTTP."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omlx_server.cli.app import app
from tests.api.conftest import CHATML
from tests.api.harness import ADMIN_TOKEN, ServerProcess, serving
from tests.cli.answering_server import KEY, TOKEN, Server, server
from tests.models.directories import make
from tests.text import makers
from tests.tiny_models import save_tiny

__all__ = ["server"]

runner = CliRunner()


def omlx(*arguments: str, code: int = 0) -> str:
    result = runner.invoke(app, [*arguments])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_ps_as_a_table_and_as_json(server: Server) -> None:
    problem = "it has no weights; " * 30
    server.items[1]["problem"] = problem
    table = omlx("ps")
    rows = [line.split() for line in table.splitlines()]
    assert ["acme/big", "(default)", "chat", "loaded", "1.5", "MB", "0", "2", "min", "yes"] in rows
    assert ["tiny", "chat", "absent", "0", "2", "min"] in rows
    assert f"tiny could not be loaded: {problem}" in table.splitlines()
    assert "big could" not in table
    assert table.splitlines()[-1] == "Weights: 1.5 MB of 8.0 MB."
    assert json.loads(omlx("ps", "--json"))["models"] == server.items
    assert server.headers["authorization"] == f"Bearer {KEY}"


def test_load_unload_and_pin(server: Server) -> None:
    assert omlx("load", "big") == "acme/big is loaded, 1.5 MB of weights.\n"
    server.items[1]["adapters"] = ["coder", "writer"]
    assert omlx("load", "tiny") == "tiny is loaded, with the adapters coder, writer.\n"
    del server.asked[1]
    assert "not loaded any more" in omlx("unload", "acme/big")
    assert "stays" in omlx("pin", "big")
    assert "may go" in omlx("pin", "big", "--off")
    assert server.asked == [
        ("/admin/models/load", {"model": "big"}),
        ("/admin/models/unload", {"model": "acme/big"}),
        ("/admin/models/pin", {"model": "big", "pinned": True}),
        ("/admin/models/pin", {"model": "big", "pinned": False}),
    ]


def test_unload_says_what_becomes_of_a_pinned_one(server: Server) -> None:
    first, *more = omlx("unload", "big").splitlines()
    assert first == "acme/big is not loaded any more."
    assert more[0].startswith("It is still pinned: ")
    assert omlx("unload", "tiny") == "tiny is not loaded any more.\n"


def test_what_the_server_says_of_the_model_as_json(server: Server) -> None:
    big = server.items[0]
    for command in (("load",), ("unload",), ("pin",), ("pin", "--off")):
        assert json.loads(omlx(*command, "big", "--json")) == big


def test_what_the_server_refuses_is_one_line(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert omlx("load", "other", code=1) == "error: no model other (HTTP 404)\n"
    monkeypatch.delenv("OMLX_ADMIN_TOKEN")
    assert "OMLX_ADMIN_TOKEN" in omlx("ps", code=2)


def test_nobody_there(server: Server) -> None:
    error = omlx("ps", "--url", "http://127.0.0.1:1", code=1)
    assert error.splitlines() == [
        "error: no server answers at http://127.0.0.1:1",
        f"hint: yours runs at {server.url}: name it with --url",
    ]


def test_the_key_stays_here_and_the_token_on_this_machine(server: Server) -> None:
    omlx("ps", "--url", server.url)
    assert "authorization" not in server.headers
    assert server.headers["x-admin-token"] == TOKEN
    omlx("ps", "--url", server.url.replace("127.0.0.1", "0.0.0.0"), code=2)
    assert "x-admin-token" not in server.headers


def test_rm_leaves_what_the_server_has_loaded(server: Server, home: Path) -> None:
    path = make(home / "models" / "acme" / "big")
    tiny = make(home / "models" / "tiny")
    assert "has acme/big loaded" in omlx("rm", "big", "--yes", code=2)
    assert path.is_dir()
    omlx("rm", "tiny", "--yes")
    assert not tiny.exists()
    server.items[0]["state"] = "absent"
    omlx("rm", "big", "--yes")
    assert not path.exists()


def test_rm_asks_the_server_that_it_is_told_to_ask(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(home / "models" / "acme" / "big")
    monkeypatch.setenv("OMLX_SERVER__PORT", "1")
    said = omlx("rm", "big", "--yes", "--url", server.url, code=2)
    assert f"the server at {server.url} has acme/big loaded" in said
    assert f"`omlx-server unload acme/big --url {server.url}` first" in said
    assert "no server answers" in omlx("rm", "big", "--yes", "--url", "http://127.0.0.1:1", code=1)
    monkeypatch.delenv("OMLX_ADMIN_TOKEN")
    assert "the admin token" in omlx("rm", "big", "--yes", "--url", server.url, code=2)
    assert path.is_dir()
    omlx("rm", "big", "--yes")
    assert not path.exists()


# --- The real server -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """It has two models, and has loaded one."""
    models = tmp_path_factory.mktemp("models")
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    for name in ("one", "two"):
        save_tiny(makers.save(models / name, "byte_level", CHATML), "llama", vocab_size=vocab)
    sets = (f"models.dirs={models}", "models.use_hf_cache=false")
    directory = tmp_path_factory.mktemp("real")
    with serving("one", directory, *sets, "memory.activation_reserve=64MB") as process:
        yield process


def states(url: str) -> dict[str, tuple[str, bool]]:
    found = json.loads(omlx("ps", "--json", "--url", url))["models"]
    return {item["name"]: (item["state"], item["pinned"]) for item in found}


def test_without_the_token_ps_shows_what_is_loaded(real: ServerProcess) -> None:
    """As for a server of another user, or in a container, that has no keys."""
    result = runner.invoke(app, ["ps", "--url", real.url])
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["one", "chat", "loaded", "0"] in rows and not any("two" in row for row in rows)
    assert rows[-1][0] == "Weights:" and rows[-1][-1] == "GB."
    assert result.stderr.startswith("note: only what is loaded is shown")
    told = json.loads(runner.invoke(app, ["ps", "--json", "--url", real.url]).stdout)
    assert told["models"] == [{"name": "one", "kind": "chat", "state": "loaded", "in_use": 0}]


def test_an_alias_counts_at_once_for_the_server_at_the_configured_address(
    real: ServerProcess, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alias(*words: str) -> str:
        result = runner.invoke(app, ["alias", *words])
        assert result.exit_code == 0, result.output
        return result.stderr

    monkeypatch.setenv("OMLX_SERVER__PORT", real.url.rpartition(":")[2])
    assert "was not told: " in alias("small", "starter")
    monkeypatch.setenv("OMLX_ADMIN_TOKEN", ADMIN_TOKEN)
    assert alias("small", "starter") == (
        f"note: the server at {real.url} has another config, and does not follow\n"
    )
    monkeypatch.setenv("OMLX_CONFIG", str(real.config))
    assert alias("little", "starter") == f"the server at {real.url} knows it\n"
    assert alias("--remove", "little") == f"the server at {real.url} has forgotten it\n"


def test_a_real_server_loads_pins_and_unloads(
    real: ServerProcess, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = ("--url", real.url)
    assert "OMLX_ADMIN_TOKEN" in omlx("load", "two", *url, code=2)
    monkeypatch.setenv("OMLX_ADMIN_TOKEN", ADMIN_TOKEN)
    assert states(real.url)["one"] == ("loaded", False)
    assert states(real.url).get("two", ("absent", False)) == ("absent", False)
    assert omlx("load", "two", *url).startswith("two is loaded")
    omlx("pin", "two", *url)
    assert states(real.url)["two"] == ("loaded", True)
    assert "two" in omlx("ps", *url)
    assert "It is still pinned" in omlx("unload", "two", *url)
    assert states(real.url)["two"] == ("absent", True)
    real.chat("hello", model="two", max_tokens=1)
    assert states(real.url)["two"] == ("loaded", True)
    omlx("pin", "two", "--off", *url)
    assert "pinned" not in omlx("unload", "two", *url)
    assert states(real.url)["two"] == ("absent", False)
    error, hint = omlx("load", "three", *url, code=1).splitlines()
    assert "three" in error
    assert "omlx-server ps" in hint and "omlx-server pull" in hint
