"""`omlx-server up`: gets a model, uses or starts a server, and prints how to connect."""

import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from omlx_server.cli.launch.clients import can_chat, listed_context, short_context_warning
from omlx_server.cli.models.choice import choose
from omlx_server.cli.serve import address_in_use
from omlx_server.cli.serve.address_in_use import ListenAddress, Listener
from omlx_server.cli.serve.first_chat import ask_twice
from omlx_server.cli.serve.serve import check_start
from omlx_server.cli.server_client.http import (
    ServerClient,
    is_omlx_server,
    local_url,
    own_server,
    socket_of,
    with_port,
)
from omlx_server.cli.server_client.page import open_page, page_url, signed_in_url
from omlx_server.cli.shell.options import load_settings, memory_limit
from omlx_server.cli.talk.client import ChatClient, served_models
from omlx_server.errors import OmlxError, Unavailable
from omlx_server.process.running import announcing, moved_ports
from omlx_server.settings import Loaded, Settings
from omlx_server.settings.types import expanded

_SSH_VARIABLES = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
_DISPLAY_VARIABLES = ("DISPLAY", "WAYLAND_DISPLAY")
_CHECKOUT = Path(__file__).parents[3]
_CURL = (
    "curl -s{socket} {url}/v1/chat/completions -H 'Content-Type: application/json'{key} "
    '-d \'{{"model": "{model}", "max_tokens": 100, '
    '"messages": [{{"role": "user", "content": "Hi there"}}]}}\''
)
# -P: without it, a file random.py of the working directory would be run.
PROGRAM = (sys.executable, "-P", "-m", "omlx_server")
ServerProcess = subprocess.Popen[bytes]
_POLL_SECONDS = 0.2
_SILENT_SECONDS = 5
_FIRST_START = (
    "The first start of a model measures its memory on this machine; later ones are quicker."
)
_END_SECONDS = 15  # in which the server ends, after the grace of running answers


def has_desktop(environ: Mapping[str, str], platform: str) -> bool:
    """Whether a browser can show a window: not over SSH, and on Linux only with a display."""
    if any(environ.get(name) for name in _SSH_VARIABLES):
        return False
    return platform != "linux" or any(environ.get(name) for name in _DISPLAY_VARIABLES)


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of `up`; `program` is the command that serves."""

    model: str
    once: bool
    demo: bool
    config: Path | None
    sets: Sequence[str]
    program: Sequence[str] = PROGRAM
    browser: bool = True


def run(options: UpOptions, *, port: str | None) -> int:
    loaded = load_settings(options.config, options.sets, {"server.port": port})
    address = address_in_use.find_address(loaded.settings)
    listener = "Another program"
    for server in _running_servers(loaded.settings, address):
        with ChatClient(server) as client:
            served = served_models(client)
        if not options.model or options.model in served:
            return _use_running(server, options.model or served[0], options)
        if server.url == address.url:
            listener = f"A server of {served[0]}"
    if address.listener is Listener.NOBODY:
        return _start_server(loaded, address, options)
    free_address = address_in_use.next_free(loaded.settings)
    moving = f"{listener} has port {address.port}; taking {free_address.port}."
    with announcing(f"{address.port}-{free_address.port}"):
        return _start_server(loaded, free_address, options, moving)


def _running_servers(settings: Settings, address: ListenAddress) -> list[ServerClient]:
    """Return our servers at the configured address and at the ports to which `up` moved."""
    servers = [own_server(settings)] if address.listener is Listener.OURS else []
    moved = [own_server(with_port(settings, port)) for port in moved_ports(address.port)]
    return servers + [server for server in moved if is_omlx_server(server.url)]


def _use_running(server: ServerClient, model: str, options: UpOptions) -> int:
    print(f"A server runs already at {server.url}.", flush=True)
    _greet(server, model, options)
    return 0


def _greet(server: ServerClient, model: str, options: UpOptions) -> None:
    with ChatClient(server) as client:
        model = _served_name(client.models(), model)
        if options.once or options.demo:
            ask_twice(client, model)
    _say_where_to_go(server, model, options)


def _start_server(
    loaded: Loaded, address: ListenAddress, options: UpOptions, moving: str = ""
) -> int:
    """Start a server, whose model is checked first; `moving` says why it is at another port."""
    settings, model = loaded.settings, options.model
    choice = None if model else choose(settings)
    model = choice.name if choice else model
    check_start(settings, model)
    if choice:
        print(f"Model: {choice.name} ({choice.why})", flush=True)
    if moving:
        print(moving, flush=True)
    print(f"Starting {model} on {address.url} ...", flush=True)
    arguments = _serve_arguments(model, address, options)
    grace_seconds = settings.server.shutdown_grace_seconds
    with (
        _server_process(options.program, arguments, grace_seconds) as server,
        ChatClient(ServerClient(address.url, is_own=True)) as client,
    ):
        if not _wait_until_ready(client.is_ready, server):
            return int(server.returncode)
        _greet(own_server(with_port(settings, address.port)), model, options)
        if options.once:
            print(f"\nThe server ends now. One that stays: {_program_in_words()} up", flush=True)
        else:
            with suppress(KeyboardInterrupt):
                print("\nServing until Ctrl-C.", flush=True)
                server.wait()
    if server.returncode != 0:
        raise OmlxError(f"the server ended with code {server.returncode}")
    return 0


def _serve_arguments(model: str, address: ListenAddress, options: UpOptions) -> list[str]:
    words = ["serve", model]
    if address.port:
        words += ["--port", str(address.port)]
    if options.config:
        words += ["--config", str(options.config)]
    for assignment in options.sets:
        words += ["--set", assignment]
    return [*words, "--until-stdin-ends", "--fallback", "logging.level=warning"]


def _served_name(served: Sequence[str], model: str) -> str:
    """Return the name by which the server knows `model`, which may be a path."""
    for name in (model, expanded(model).resolve().name):
        if name in served:
            return name
    return served[0] if served else model


def _say_where_to_go(server: ServerClient, model: str, options: UpOptions) -> None:
    page = page_url(server)
    # A code is for a person at a terminal: no log gets one, nor does a server that ends now.
    signs_in = page and sys.stdout.isatty() and not options.once
    shown = signed_in_url(server, page) if signs_in else page
    rows = [f"{what + ':':<9} {how}" for what, how in _ways_to_connect(server, model, shown)]
    print("\n" + "\n".join(rows), flush=True)
    if signs_in and options.browser and has_desktop(os.environ, sys.platform):
        open_page(server, page)


def _ways_to_connect(server: ServerClient, model: str, page: str) -> Iterator[tuple[str, str]]:
    url = server.url
    # Commands without --url ask the server of the default config.
    usual = load_settings(None).settings
    is_usual = bool(usual.server.uds or usual.server.port) and local_url(usual) == url
    url_option = "" if is_usual else f" --url {url}"
    if page:
        yield "Page", page
    socket_path = socket_of(url)
    base = "http://localhost" if socket_path else url
    yield "API", f"{url if socket_path else f'{url}/v1'}  (any OpenAI client; model {model})"
    if server.key:
        yield "Key", "one of auth.api_keys, in OMLX_API_KEY"
    key_option = ' -H "Authorization: Bearer $OMLX_API_KEY"' if server.key else ""
    socket_option = f" --unix-socket {shlex.quote(socket_path)}" if socket_path else ""
    yield "Try", _CURL.format(url=base, socket=socket_option, key=key_option, model=model)
    yield "Talk", f"{_program_in_words()} chat{url_option}"
    listing = server.model_listings().get(model, {})
    if not socket_path and can_chat(listing):
        yield "Agents", f"{_program_in_words()} launch claude{url_option}"
        if warning := short_context_warning(model, listed_context(listing), memory_limit(usual)):
            yield "Warning", warning
    yield "Docs", _docs_in_words(base)


def _program_in_words() -> str:
    """Return what the user types to call this program."""
    program = Path(sys.executable).with_name("omlx-server")
    on_path = shutil.which("omlx-server")
    is_on_path = on_path is not None and Path(on_path).resolve() == program.resolve()
    return "omlx-server" if is_on_path or not program.exists() else shlex.quote(str(program))


def _docs_in_words(url: str) -> str:
    if (_CHECKOUT / "README.md").is_file() and (_CHECKOUT / "scripts" / "quickstart").is_file():
        return f"{_CHECKOUT / 'README.md'}, {_CHECKOUT / 'docs'}"
    return f"{_program_in_words()} --help; every route: {url}/openapi.json"


@contextmanager
def _server_process(
    program: Sequence[str], arguments: Sequence[str], grace_seconds: float
) -> Iterator[ServerProcess]:
    """Start the server, and end it with the `with`, when running answers get the grace. From here
    on SIGTERM and SIGHUP raise KeyboardInterrupt. If this process is killed, the server's standard
    input ends, and so does the server."""
    # SIGINT too: a shell that starts us in the background has it ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    server = subprocess.Popen(
        [*program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0
    )
    try:
        yield server
    finally:
        _end_process(server, grace_seconds)


def _wait_until_ready(is_ready: Callable[[], bool], server: ServerProcess) -> bool:
    """Wait without limit. Return False if the server ended with exit code 1 or 2: it has printed
    the reason. Raises Unavailable if it ended otherwise."""
    say_at = time.monotonic() + _SILENT_SECONDS
    while not is_ready():
        if time.monotonic() > say_at:
            say_at = math.inf
            print(_FIRST_START, flush=True)
        if server.poll() in (1, 2):
            return False
        if server.returncode is not None:
            raise Unavailable(f"the server ended with code {server.returncode} before it was ready")
        time.sleep(_POLL_SECONDS)
    return True


def _end_process(server: ServerProcess, grace_seconds: float) -> None:
    server.terminate()
    try:
        server.wait(timeout=grace_seconds + _END_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        server.kill()
        server.wait()
    if server.stdin:
        server.stdin.close()
