"""`omlx-server up`: gets a model, uses or starts a server, and prints how to connect."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from omlx_server.cli.launch.target import chats, context_of, short_context
from omlx_server.cli.models.choice import choose
from omlx_server.cli.serve import address_in_use
from omlx_server.cli.serve.address_in_use import ListenAddress, Listener
from omlx_server.cli.serve.first_chat import ask_twice
from omlx_server.cli.server_client.address import local_url
from omlx_server.cli.server_client.http import ServerClient, socket_of
from omlx_server.cli.shell.options import load_settings
from omlx_server.cli.talk.client import ChatClient, served_by
from omlx_server.errors import OmlxError, Unavailable
from omlx_server.settings import Loaded
from omlx_server.settings.types import expanded

_OK = 200
_REMOTE = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
_CHECKOUT = Path(__file__).parents[3]
_CURL = (
    "curl -s{socket} {url}/v1/chat/completions -H 'Content-Type: application/json'{key} "
    '-d \'{{"model": "{model}", "max_tokens": 100, '
    '"messages": [{{"role": "user", "content": "Hi there"}}]}}\''
)
# -P: without it, a file random.py of the working directory would be run.
PROGRAM = (sys.executable, "-P", "-m", "omlx_server")
Server = subprocess.Popen[bytes]
_POLL_SECONDS = 0.2
# Seconds in which the server ends after the grace of running answers.
_GRACE_SECONDS = 15


def page_of(server: ServerClient) -> str:
    """Return the URL of a server's page; empty if a browser can't open it. Raises NoAnswer."""
    if socket_of(server.url):
        return ""
    reply = server.get("/web/index.html")
    return f"{server.url}/" if reply.status == _OK and reply.body.lstrip()[:1] == b"<" else ""


def open_page(url: str) -> None:
    """Open a page in a browser if stdout is a terminal of a desktop."""
    if sys.stdout.isatty() and has_desktop(os.environ, sys.platform):
        webbrowser.open(url)


def has_desktop(environ: Mapping[str, str], platform: str) -> bool:
    """Whether a browser can show a window: not over SSH, and on Linux only with a display."""
    if any(environ.get(name) for name in _REMOTE):
        return False
    return platform != "linux" or any(environ.get(name) for name in _SCREENS)


@dataclass(frozen=True, slots=True)
class UpOptions:
    """`program` is the command that serves."""

    model: str
    once: bool
    demo: bool
    config: Path | None
    sets: Sequence[str]
    program: Sequence[str] = PROGRAM
    browser: bool = True


def run(options: UpOptions, *, port: str | None) -> int:
    loaded = load_settings(options.config, options.sets, {"server.port": port})
    address = address_in_use.look(loaded.settings)
    if address.listener is Listener.NOBODY:
        return _start(loaded, address, options)
    served: list[str] = []
    if address.listener is Listener.OURS:
        with ChatClient(address.server) as client:
            served = served_by(client)
    if served and (not options.model or options.model in served):
        return _use(address.server, options.model or served[0], options)
    free = address_in_use.next_free(loaded.settings)
    what = f"A server of {served[0]}" if served else "Another program"
    print(f"{what} has port {address.port}; taking {free.port}.", flush=True)
    return _start(loaded, free, options)


def _use(server: ServerClient, model: str, options: UpOptions) -> int:
    print(f"A server runs already at {server.url}.", flush=True)
    with ChatClient(server) as client:
        if options.once or options.demo:
            ask_twice(client, model)
    _say_where_to_go(server, model, options)
    return 0


def _start(loaded: Loaded, at: ListenAddress, options: UpOptions) -> int:
    settings = loaded.settings
    model = options.model
    if not model:
        choice = choose(settings)
        model = choice.name
        print(f"Model: {choice.name} ({choice.why})", flush=True)
    print(f"Starting {model} on {at.server.url} ...", flush=True)
    arguments = _arguments(model, at, options)
    grace = settings.server.shutdown_grace_seconds
    with (
        started(options.program, arguments, grace) as server,
        ChatClient(at.server) as client,
    ):
        if not wait_until_ready(client.is_ready, server):
            return int(server.returncode)
        model = _name_among(client.models(), model)
        if options.once or options.demo:
            ask_twice(client, model)
        _say_where_to_go(at.server, model, options)
        if options.once:
            print(f"\nThe server ends now. One that stays: {_program()} up", flush=True)
        else:
            with suppress(KeyboardInterrupt):
                print("\nServing until Ctrl-C.", flush=True)
                server.wait()
    if server.returncode != 0:
        raise OmlxError(f"the server ended with code {server.returncode}")
    return 0


def _arguments(model: str, at: ListenAddress, options: UpOptions) -> list[str]:
    words = ["serve", model, *(["--port", str(at.port)] if at.port else [])]
    words += ["--config", str(options.config)] if options.config else []
    words += [word for text in options.sets for word in ("--set", text)]
    return [*words, "--fallback", "logging.level=warning"]


def _name_among(served: Sequence[str], model: str) -> str:
    names = (model, expanded(model).resolve().name)
    return next((name for name in names if name in served), served[0] if served else model)


def _say_where_to_go(server: ServerClient, model: str, options: UpOptions) -> None:
    page = page_of(server)
    lines = list(_connections(server, model, page))
    print("\n" + "\n".join(f"{what + ':':<9} {how}" for what, how in lines), flush=True)
    if page and options.browser and not options.once:
        open_page(page)


def _connections(server: ServerClient, model: str, page: str) -> Iterator[tuple[str, str]]:
    url = server.url
    usual = load_settings(None).settings
    is_usual = bool(usual.server.uds or usual.server.port) and local_url(usual) == url
    url_option = "" if is_usual else f" --url {url}"
    key = ' -H "Authorization: Bearer $OMLX_API_KEY"' if server.key else ""
    if page:
        yield "Page", page
    path = socket_of(url)
    base = "http://localhost" if path else url
    yield "API", f"{url if path else f'{url}/v1'}  (any OpenAI client; model {model})"
    if key:
        yield "Key", "one of auth.api_keys, in OMLX_API_KEY"
    socket = f" --unix-socket {shlex.quote(path)}" if path else ""
    yield "Try", _CURL.format(url=base, socket=socket, key=key, model=model)
    yield "Talk", f"{_program()} chat{url_option}"
    listing = server.model_listings().get(model, {})
    if not path and chats(listing):
        yield "Agents", f"{_program()} launch claude{url_option}"
        if warning := short_context(model, context_of(listing)):
            yield "Warning", warning
    yield "Docs", _docs(base)


def _program() -> str:
    program = Path(sys.executable).with_name("omlx-server")
    on_path = shutil.which("omlx-server")
    is_on_path = on_path is not None and Path(on_path).resolve() == program.resolve()
    return "omlx-server" if is_on_path or not program.exists() else shlex.quote(str(program))


def _docs(url: str) -> str:
    if (_CHECKOUT / "README.md").is_file() and (_CHECKOUT / "scripts" / "quickstart").is_file():
        return f"{_CHECKOUT / 'README.md'}, {_CHECKOUT / 'docs'}"
    return f"{_program()} --help; every route: {url}/openapi.json"


@contextmanager
def started(program: Sequence[str], arguments: Sequence[str], grace: float) -> Iterator[Server]:
    """Start the server, and end it with the `with`: running answers have `grace` seconds. From
    here on SIGTERM and SIGHUP raise KeyboardInterrupt."""
    # SIGINT too: a shell that starts us in the background has it ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    server = subprocess.Popen(
        [*program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        yield server
    finally:
        _end(server, grace)


def wait_until_ready(is_ready: Callable[[], bool], server: Server) -> bool:
    """Wait without limit. Return False if the server ended with exit code 1 or 2: it has printed
    the reason. Raises Unavailable if it ended otherwise."""
    while not is_ready():
        if server.poll() in (1, 2):
            return False
        if server.returncode is not None:
            raise Unavailable(f"the server ended with code {server.returncode} before it was ready")
        time.sleep(_POLL_SECONDS)
    return True


def _end(server: Server, grace: float) -> None:
    server.terminate()
    try:
        server.wait(timeout=grace + _GRACE_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        server.kill()
        server.wait()
