"""The settings of a running server, shown and changed over HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omlx_server.service.launchd import LABEL
from omlx_server.service.supervised import START_AGAIN
from omlx_server.settings import KEYS
from tests.api.admin.asking import OWNER, told
from tests.api.harness import UNPROBED, Json, ServerProcess, serving

LAUNCHD = {"XPC_SERVICE_NAME": LABEL}

CONFIG = """\
# mine
[scheduler]
max_queue = 32  # enough

[auth]
api_keys = ["very-secret-key"]
"""


@pytest.fixture(scope="module")
def server(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    sets = [f"models.dirs={tiny_models}", "memory.activation_reserve=64MB"]
    home = tmp_path_factory.mktemp("settings")
    with serving("org/tiny", home, *sets, config=CONFIG) as server:
        yield server


@pytest.fixture(autouse=True)
def as_it_was(server: ServerProcess) -> Iterator[None]:
    yield
    server.config.write_text(CONFIG)
    told(server, "settings/reload", method="POST")


def setting(server: ServerProcess, key: str) -> Json:
    found = {one["key"]: one for one in told(server, "settings")["settings"]}
    one: Json = found[key]
    return one


def change(server: ServerProcess, status: int = 200, **values: Any) -> Json:
    named = {key.replace("__", "."): value for key, value in values.items()}
    return told(server, "settings", status, method="PATCH", json=named)


def test_every_setting_is_listed_but_secrets(server: ServerProcess) -> None:
    found = told(server, "settings")
    assert found["file"] == str(server.config)
    keys = [one["key"] for one in found["settings"]]
    secrets = {"auth.api_keys", "cache.remote", "cluster.secret"}
    assert keys == [key for key in KEYS if key not in secrets]
    said = server.http.get(f"{server.url}/admin/settings", headers=OWNER).text
    assert "very-secret-key" not in said


def test_each_says_what_it_is_and_where_it_is_from(server: ServerProcess) -> None:
    queue = setting(server, "scheduler.max_queue")
    assert (queue["value"], queue["default"], queue["type"]) == (32, 128, "int")
    assert (queue["least"], queue["most"], queue["live"]) == (1, 100_000, True)
    assert queue["origin"] == f"file {server.config}" and not queue["needs_restart"]
    assert "from 1 to 100000" in queue["takes"]
    assert queue["help"].startswith("How many requests may wait;")
    assert "parallel" in queue["search_words"] and queue["text"] == queue["default_text"] == ""
    ping = setting(server, "server.sse_ping_seconds")
    assert (ping["text"], ping["default_text"]) == ("5 s", "5 s")
    level = setting(server, "logging.level")
    assert (level["type"], level["origin"]) == ("choice", "default")
    assert level["choices"] == ["debug", "info", "warning", "error"]
    assert setting(server, "memory.activation_reserve")["origin"] == "flag"
    assert setting(server, "memory.activation_reserve")["live"] is False
    types = {one["key"]: one["type"] for one in told(server, "settings")["settings"]}
    assert types["cache.enabled"] == "bool" and types["scheduler.decode_share"] == "float"
    assert types["models.pinned"] == "list" and types["models.aliases"] == "table"
    assert types["memory.limit"] == "text"


def test_a_live_setting_applies_at_once_and_is_in_the_file(server: ServerProcess) -> None:
    assert change(server, scheduler__max_queue=7, logging__level="debug") == {
        "applied": ["scheduler.max_queue", "logging.level"],
        "needs_restart": [],
    }
    text = server.config.read_text()
    assert "# mine" in text and "max_queue = 7  # enough" in text and 'level = "debug"' in text
    assert setting(server, "scheduler.max_queue")["value"] == 7
    assert setting(server, "logging.level")["origin"] == f"file {server.config}"


def test_the_file_can_be_read_at_once(server: ServerProcess) -> None:
    def reload(status: int = 200) -> Json:
        return told(server, "settings/reload", status, method="POST")

    server.config.write_text(CONFIG.replace("32", "33"))
    assert reload() == {"applied": ["scheduler.max_queue"], "needs_restart": []}
    assert setting(server, "scheduler.max_queue")["value"] == 33
    assert reload()["applied"] == []
    server.config.write_text("[server\n")
    assert "nothing was changed: " in reload(409)["error"]["message"]


def test_what_needs_a_restart_is_said_and_stays_as_it_is(server: ServerProcess) -> None:
    done = change(server, scheduler__policy="fcfs", scheduler__max_queue=9)
    assert done == {"applied": ["scheduler.max_queue"], "needs_restart": ["scheduler.policy"]}
    policy = setting(server, "scheduler.policy")
    assert (policy["value"], policy["needs_restart"]) == ("fair", True)
    health = server.http.get(f"{server.url}/health", headers=OWNER).json()
    assert health["config"]["needs_restart"] == ["scheduler.policy"]
    change(server, scheduler__policy="fair")
    assert not setting(server, "scheduler.policy")["needs_restart"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scheduler.max_queue", 0),
        ("scheduler.max_queue", 1.5),
        ("scheduler.max_queue", "many"),
        ("logging.level", "loud"),
        ("server.sse_ping_seconds", 10_000),
        ("server.cors_origins", ["not an origin"]),
        ("scheduler.nothing", 1),
        ("nothing", 1),
        ("models.overrides.org/tiny.nothing", 1),
        ("auth.api_keys", ["stolen"]),
        ("auth.admin", "key"),
        ("server.allowed_hosts", ["*"]),
        ("server.cors_origins", ["*"]),
        ("server.cors_origins", ["https://a.example"]),
        ("server.host", "0.0.0.0"),
        ("server.uds", "/tmp/socket"),
        ("cluster.program", "/tmp/program"),
        ("cache.remote", "redis://elsewhere"),
    ],
)
def test_a_bad_value_changes_nothing(server: ServerProcess, key: str, value: object) -> None:
    before = server.config.read_bytes()
    body = {"logging.level": "debug", key: value}
    error = told(server, "settings", 400, method="PATCH", json=body)["error"]
    assert error["param"] == key and error["message"]
    assert server.config.read_bytes() == before


def test_values_that_contradict_each_other_change_nothing(server: ServerProcess) -> None:
    before = server.config.read_bytes()
    change(server, 400, scheduler__max_batched_tokens=64, scheduler__max_batch_size=128)
    assert server.config.read_bytes() == before
    done = change(server, scheduler__max_batched_tokens=128, scheduler__prefill_chunk_tokens=128)
    assert len(done["needs_restart"]) == 2


def test_what_a_flag_sets_is_a_conflict(server: ServerProcess) -> None:
    error = change(server, 409, memory__activation_reserve="1MB")["error"]
    assert error["param"] == "memory.activation_reserve" and "flag" in error["message"]


def test_what_the_server_cannot_use_now_is_taken_back(server: ServerProcess) -> None:
    before = server.config.read_bytes()
    error = change(server, 409, memory__limit="1KB")["error"]
    assert "memory.limit" in error["message"]
    assert server.config.read_bytes() == before
    assert setting(server, "memory.limit")["value"] != 1000


def test_a_file_that_is_broken_is_left_alone(server: ServerProcess) -> None:
    server.config.write_text("[scheduler\n")
    assert change(server, 409, scheduler__max_queue=5)["error"]["code"] == "conflict"
    assert server.config.read_text() == "[scheduler\n"


def test_lists_tables_and_sizes_are_taken(server: ServerProcess) -> None:
    done = change(
        server,
        models__pinned=["org/tiny"],
        models__aliases={"small": "org/tiny"},
        server__max_body_bytes="4MiB",
        cache__cold_write_through=True,
    )
    assert done["needs_restart"] == []
    assert setting(server, "models.pinned")["value"] == ["org/tiny"]
    assert setting(server, "models.aliases")["value"] == {"small": "org/tiny"}
    assert setting(server, "server.max_body_bytes")["value"] == 4 * 2**20
    assert setting(server, "cache.cold_write_through")["value"] is True
    change(server, server__max_body_bytes="4 MB")
    body = setting(server, "server.max_body_bytes")
    assert (body["value"], body["text"], body["default_text"]) == (4 * 10**6, "4 MB", "32 MiB")


def test_a_setting_is_set_back_to_its_default(server: ServerProcess) -> None:
    def reset(*keys: str, status: int = 200) -> Json:
        return told(server, "settings/reset", status, method="POST", json={"keys": keys})

    change(server, scheduler__max_queue=7, logging__level="debug")
    done = reset("scheduler.max_queue", "logging.level")
    assert done["applied"] == ["scheduler.max_queue", "logging.level"]
    queue = setting(server, "scheduler.max_queue")
    assert (queue["value"], queue["origin"]) == (128, "default")
    assert "max_queue" not in server.config.read_text()
    assert reset("scheduler.max_queue") == {"applied": ["scheduler.max_queue"], "needs_restart": []}
    for wrong in ("auth.admin", "scheduler.nothing"):
        assert reset("logging.level", wrong, status=400)["error"]["param"] == wrong
    assert reset("memory.activation_reserve", status=409)
    assert reset(status=400)


def test_a_server_that_nobody_starts_again_does_not_end(server: ServerProcess) -> None:
    assert told(server, "settings")["can_restart"] is False
    assert "by hand" in told(server, "settings/restart", 409, method="POST")["error"]["message"]
    assert server.running


def test_a_service_ends_to_be_started_again(tiny_models: Path, tmp_path: Path) -> None:
    sets = [f"models.dirs={tiny_models}", UNPROBED]
    server = ServerProcess("org/tiny", tmp_path, sets, environ=LAUNCHD)
    try:
        server.wait_ready()
        assert told(server, "settings")["can_restart"] is True
        change(server, scheduler__policy="fcfs")
        waiting = told(server, "settings/restart", method="POST")["needs_restart"]
        assert waiting == ["scheduler.policy"]
        assert server.wait() == START_AGAIN
    finally:
        server.kill()


def test_an_empty_change_is_refused(server: ServerProcess) -> None:
    assert change(server, 400)
    assert told(server, "settings", 400, method="PATCH", json={"scheduler.max_queue": None})


def test_only_the_owner_may_look_and_change(server: ServerProcess) -> None:
    key = {"authorization": "Bearer very-secret-key"}
    url = f"{server.url}/admin/settings"
    assert server.http.get(url, headers=key).status_code == 401
    assert server.http.patch(url, headers=key, json={"logging.level": "debug"}).status_code == 401
    plain = {**OWNER, "content-type": "text/plain"}
    assert server.http.patch(url, headers=plain, content="{}").status_code == 415
