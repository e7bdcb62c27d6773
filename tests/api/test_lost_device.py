"""A device that serves this process no more: it ends, with an exit code after which a service
starts it again, and what was cached is on the disk."""

from pathlib import Path

from tests.api.harness import Json, ServerProcess, cached

PLANT = """
import os

from omlx_server.compute.hardware import device

def launch(*arrays, launch=device.launch):
    if os.path.exists(os.environ["OMLX_TEST_LOST"]):
        raise RuntimeError("[METAL] Command buffer execution failed: Ignored (for causing "
                           "prior/excessive GPU errors)")
    launch(*arrays)

device.launch = launch
"""
PROMPT = "Count the sheep of the farm, one by one, until there are none left. " * 12


def test_a_lost_device_ends_the_process_and_keeps_what_is_cached(
    tiny_models: Path, tmp_path: Path
) -> None:
    sign, hooks = tmp_path / "lost", tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(PLANT)
    environ = {"PYTHONPATH": str(hooks), "OMLX_TEST_LOST": str(sign)}
    model = str(tiny_models / "org" / "tiny")
    server = ServerProcess(model, tmp_path / "a", environ=environ, forked=False)
    try:
        server.wait_ready()
        answer = server.chat(PROMPT, max_tokens=4, temperature=0)
        assert cached(answer) == 0
        sign.touch()
        assert server.post(server.body("Go on.")).status_code == 500
        assert server.wait() == 1
        assert "the device failed (submissions_ignored)" in server.log
        assert "the process ends, to be started anew" in server.log
    finally:
        server.kill()
    assert_cached(ServerProcess(model, tmp_path / "a"), answer)


def assert_cached(server: ServerProcess, answer: Json) -> None:
    try:
        server.wait_ready()
        second = server.chat(PROMPT, max_tokens=4, temperature=0)
        assert cached(second) > 0
        assert second["choices"] == answer["choices"]
        server.stop()
    finally:
        server.kill()
