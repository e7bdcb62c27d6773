"""The first minute (scripts/quickstart): a server of its own, two real answers over HTTP, then
where to go on. On a terminal it serves until Ctrl-C; else, and with --once, it ends the server.
"""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from omlx_server import settings
from omlx_server.cli.address import first_key
from omlx_server.cli.chat import show, speed
from omlx_server.cli.client import Answer, ChatClient, Message
from omlx_server.cli.serve import STARTER
from omlx_server.errors import OmlxError, Unavailable

PROGRAM = (sys.executable, "-m", "omlx_server")
HOST = "127.0.0.1"
QUESTION = "What is the capital of France?"
FOLLOW_UP = "Name one famous building there."
START_LIMIT_SECONDS = 1800  # a slow line has 93 MB to fetch; a server that died is seen at once


def run(*, once: bool, program: Sequence[str] = PROGRAM) -> int:
    """`program` is what serves; tests bring a smaller one."""
    mine = settings.load().settings
    port = _free_port(8000)
    grace = mine.server.shutdown_grace_seconds
    print(f"Starting the {STARTER} model on {_url(port)} ...", flush=True)
    with _server(program, port, grace) as server, ChatClient(_url(port), first_key(mine)) as client:
        _wait_until(client.is_ready, server)
        _ask_twice(client)
        _say_where_to_go(client.url)
        if sys.stdout.isatty() and not once:
            with suppress(KeyboardInterrupt):
                print("\nServing until Ctrl-C.", flush=True)
                server.wait()
    if server.returncode != 0:
        raise OmlxError(f"the server ended with code {server.returncode}")
    return 0


def _ask_twice(client: ChatClient) -> None:
    messages: list[Message] = [{"role": "user", "content": QUESTION}]
    first = _ask(client, messages)
    if "Paris" not in first.text:
        raise OmlxError(f"the answer to {QUESTION!r} should name Paris; something is wrong")
    messages += [
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": FOLLOW_UP},
    ]
    second = _ask(client, messages)
    print(
        f"\nThe second request repeats the first and adds a turn. Of its {second.prompt_tokens} "
        f"prompt tokens {second.cached_tokens} came from the cache;\nits first token took "
        f"{second.first_token_at / first.first_token_at:.2f} times as long as that of the first."
    )


def _ask(client: ChatClient, messages: list[Message]) -> Answer:
    print(f"\n> {messages[-1]['content']}", flush=True)
    answer = client.ask(STARTER, messages, show, temperature=0, max_tokens=64)
    print(f"\n{speed(answer)}", flush=True)
    return answer


def _say_where_to_go(url: str) -> None:
    print(
        f"\nAPI:      {url}/v1  (any OpenAI client; model {STARTER})"
        f"\nTalk:     {Path(sys.executable).with_name('omlx-server')} chat --url {url}"
        "\nDocs:     README.md, ARCHITECTURE.md, config/omlx.example.toml"
        "\nNext:     scripts/serve, scripts/test",
        flush=True,
    )


# --- The server as a child process ---------------------------------------------------------------


@contextmanager
def _server(program: Sequence[str], port: int, grace: float) -> Iterator[subprocess.Popen[bytes]]:
    """In a process group of its own: a Ctrl-C reaches us alone, and we end the server in order."""
    command = [*program, "serve", STARTER]
    command += ["--host", HOST, "--port", str(port), "--set", "logging.level=warning"]
    # SIGINT too: a shell that starts us in the background has it ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, process_group=0
    )
    try:
        yield server
    finally:
        _end(server, grace)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _end(server: subprocess.Popen[bytes], grace: float) -> None:
    """SIGTERM, then time for running answers; a Ctrl-C meanwhile ends it at once."""
    server.terminate()
    try:
        server.wait(timeout=grace + 15)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        server.kill()
        server.wait()


def _wait_until(is_ready: Callable[[], bool], server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT_SECONDS
    while not is_ready():
        if server.poll() is not None:
            raise Unavailable(f"the server ended with code {server.returncode} before it was ready")
        if time.monotonic() > deadline:
            raise Unavailable(f"the server was not ready after {START_LIMIT_SECONDS} s")
        time.sleep(0.2)


def _url(port: int) -> str:
    return f"http://{HOST}:{port}"


def _free_port(wanted: int) -> int:
    """`wanted`, or any other when that one is taken."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, wanted))
        except OSError:
            probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
