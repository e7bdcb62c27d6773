"""Scripted clients against the real server on the starter model, each in an environment of its own.

    scripts/test --clients                  all of them
    scripts/test --clients openai litellm   these

The first run installs them, which takes minutes and needs the network. The exit status is 1 when a
scenario failed or a client could not be installed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from omlx_server.models.progress import Silent
from omlx_server.settings import Settings
from omlx_server.wiring.model_directory import find_model
from tests.api.harness import REPO, ServerProcess, serving
from tests.clients import installation
from tests.clients.installation import Installed, NoNode, NotInstalled
from tests.clients.results import Result, failed, table
from tests.clients.scenario import Server
from tests.scripted_models import call_of, save_scripted

CHAT_MODEL = "starter"
EMBEDDING_MODEL = "all-MiniLM-L6-v2"
CALLING_MODEL = "caller"
CALLING_MODEL_ANSWER = "It rains in Paris, says the tool."
CONFIG = f"[models.overrides.{CHAT_MODEL}.sampling]\ntemperature = 0\n"
"""By chance such a small model may run on to the end of its context; greedily it ends."""
CLIENT_SECONDS = 900.0
"""For all scenarios of one client."""

# No client may ask the internet for anything, nor find the keys or the files of its user.
_QUIET = {
    "ANTHROPIC_API_KEY": "x",
    "AI_SDK_LOG_WARNINGS": "false",
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_PROXY": "*",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENAI_API_KEY": "x",
    "PYTHONPATH": str(REPO),
    "PYTHONWARNINGS": "ignore",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_OFFLINE": "1",
}
_KEPT = ("PATH", "LANG", "TMPDIR", "SSL_CERT_FILE")


def main() -> int:
    wanted = _parser().parse_args().clients or installation.names()
    ready: list[Installed] = []
    results: list[Result] = []
    for name in wanted:
        _say(f"{name}: looking whether it is installed ...")
        try:
            ready.append(installation.install(name))
        except NotInstalled as error:
            results.append(Result(name, "", "(not installed)", 0.0, str(error)))
        except NoNode as error:
            results.append(Result(name, "", f"({error})", 0.0, skipped=True))
    if ready:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            results += _run_all(ready, Path(directory))
    _say("\n" + table(results))
    _say_why(results)
    return int(failed(results))


def _say_why(results: Sequence[Result]) -> None:
    for result in results:
        if result.error:
            _say(f"\n{result.client} {result.scenario}: {result.error}")
            log = installation.log_of(result.client)
            if log.exists():
                _say(f"  more in {log}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/test --clients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(installation.names())
    parser.add_argument("clients", nargs="*", metavar="CLIENT", type=_known, help=f"of {names}")
    return parser


def _known(name: str) -> str:
    if name not in installation.names():
        raise argparse.ArgumentTypeError(f"there is no client {name!r}")
    return name


def _run_all(clients: Sequence[Installed], directory: Path) -> list[Result]:
    _say("starting the server ...")
    call = call_of("get_weather", {"city": "Paris"})
    scripted = directory / "models" / CALLING_MODEL
    save_scripted(scripted, call=call, answer=CALLING_MODEL_ANSWER, expected="Rain in Paris")
    sets = (f"models.embedding={EMBEDDING_MODEL}", f"models.dirs={directory / 'models'}")
    with serving(CHAT_MODEL, directory / "server", *sets, config=CONFIG) as server:
        results = []
        for client in clients:
            for result in _run(client, server, directory):
                _say(str(result))
                results.append(result)
    return results


def _run(client: Installed, server: ServerProcess, directory: Path) -> Iterator[Result]:
    """One client's results as they come. What it says otherwise is in its log."""
    home = directory / client.name
    home.mkdir()
    log = installation.log_of(client.name)
    with log.open("wb") as errors:
        process = subprocess.Popen(
            client.command,
            cwd=home,
            env=_environment(server, home),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    limit = threading.Timer(CLIENT_SECONDS, process.kill)
    limit.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            yield Result.of_line(client.name, line)
        status = process.wait()
    finally:
        limit.cancel()
        process.kill()
        process.wait()
    if status:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
        error = f"it ended with status {status}: {' '.join(last)}"
        yield Result(client.name, "", "(the whole)", 0.0, error)


def _environment(server: ServerProcess, home: Path) -> dict[str, str]:
    told = Server(
        url=server.url,
        model=CHAT_MODEL,
        embedding_model=EMBEDDING_MODEL,
        calling_model=CALLING_MODEL,
        calling_model_answer=CALLING_MODEL_ANSWER,
        model_path=find_model(CHAT_MODEL, Settings(), Silent()).path,
        directory=home,
        python=sys.executable,
    )
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, **_QUIET, "HOME": str(home), **told.variables()}


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
