"""What a server over two ranks of this machine shows of them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omlx_server.cli.app import app
from tests.api.conftest import CHATML
from tests.api.harness import ServerProcess, samples, wait_for
from tests.text import makers
from tests.tiny_models import save_tiny


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("shown")
    model = makers.save(folder / "models" / "tiny", "byte_level", CHATML)
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    save_tiny(model, "llama", vocab_size=vocab)
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([{"ssh": "localhost", "ips": ["127.0.0.1"]}] * 2))
    sets = (f"models.dirs={model.parent}", "memory.activation_reserve=64MB")
    own = ServerProcess("tiny", folder / "own", (*sets, f"cluster.hosts={hosts}"))
    try:
        own.wait_ready()
        yield own
        own.terminate()
        own.wait()
    finally:
        own.kill()


def test_health_status_metrics_and_log_tell_of_each_rank(server: ServerProcess) -> None:
    answer = server.http.get(f"{server.url}/health")
    assert answer.status_code == 200
    ranks = answer.json()["cluster"]
    assert [(one["rank"], one["host"], one["status"]) for one in ranks] == [
        (0, "localhost", "here"),
        (1, "localhost", "here"),
    ]
    assert all(one["problem"] is None for one in ranks)
    wait_for(lambda: server.http.get(f"{server.url}/health").json()["cluster"][1]["active_bytes"])
    metrics = samples(server.http.get(f"{server.url}/metrics").text)
    assert metrics['omlx_cluster_rank_up{rank="1"}'] == 1
    assert metrics['omlx_cluster_rank_active_bytes{rank="0"}'] > 0
    assert metrics["omlx_cluster_restarts_total"] == 0
    told = CliRunner().invoke(app, ["status", "--url", server.url]).stdout
    assert "rank    1 on localhost: here" in told
    assert "rank 1 has its part of" in server.log
