"""Several servers that share a Redis, and the router in front of them, as processes."""

import contextlib
import shutil
import socket
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.api.harness import ADMIN_TOKEN, Json, ServerProcess, samples, wait_for
from tests.campaigns.replica_page import Recipe
from tests.clients import installation

PLACE = Path(sys.prefix) / "routers"
"""The environment of each router: none of their packages is one of the project's."""
_ADMIN = {"x-admin-token": ADMIN_TOKEN}
_COLD = 'omlx_cache_hit_tokens_total{tier="cold"}'
_ROUTER_SECONDS = 60.0
_LONGEST_LOG = 2000


def program_of(router: str) -> Path:
    """The program of a router, where it is installed."""
    return PLACE / router / "bin" / router


def install(router: str, recipe: Recipe) -> None:
    """Install the version of the page. Quick when it is there already. Raises NotInstalled."""
    place, wanted = PLACE / router, recipe.packages[router]
    if program_of(router).exists() and installation.is_stamped(place, wanted):
        return
    venv.create(place, clear=True, with_pip=True)
    pip = (str(place / "bin" / "python"), "-m", "pip", "install", "--quiet")
    installation.run(router, *pip, wanted, cwd=place)
    installation.stamp(place, wanted)


class Router:
    """A router, as a process; its words go to a file in `directory`. `operator`: the key of those
    who may ask it for its servers."""

    def __init__(self, command: Sequence[str], port: int, directory: Path, operator: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = directory / "router.log"
        metrics = ("--prometheus-port", str(free_port()))
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, *metrics], stdout=output, stderr=subprocess.STDOUT
            )
        headers = {"authorization": f"Bearer {operator}"}
        self._http = httpx.Client(timeout=10, trust_env=False, headers=headers)

    def __enter__(self) -> "Router":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self._process.kill()
        self._process.wait()

    def wait_for(self, urls: set[str]) -> None:
        """Wait until these are the servers that it takes for healthy."""
        wait_for(lambda: self._healthy() == urls, _ROUTER_SECONDS)

    def _healthy(self) -> set[str]:
        log = self._log.read_text(encoding="utf-8", errors="replace")
        assert self._process.poll() is None, log[-_LONGEST_LOG:]
        with contextlib.suppress(httpx.HTTPError):
            told: Json = self._http.get(f"{self.url}/workers").raise_for_status().json()
            return {worker["url"] for worker in told["workers"] if worker["is_healthy"]}
        return set()


@dataclass(frozen=True, slots=True)
class Model:
    """What all servers serve, and with which settings."""

    name: str
    settings: tuple[str, ...]


class Replica:
    """One server of a fleet, which can be started again at its port."""

    def __init__(self, model: Model, directory: Path) -> None:
        self._model = model
        self._directory = directory
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        """Start it; the server of before must have ended."""
        self.server = ServerProcess(
            self._model.name, self._directory, self._model.settings, port=self._port
        )

    def decoding(self, most: int) -> set[str]:
        """The ids of the requests of whose answers it has made at most so many tokens."""
        at_work = self._requests()["at_work"]
        begun = (request for request in at_work if request["place"] == "decoding")
        return {request["id"] for request in begun if request["output_tokens"] <= most}

    @property
    def ids(self) -> set[str]:
        """The ids of the requests at work, and of the last 200 done."""
        told = self._requests()
        return {request["id"] for request in (*told["at_work"], *told["done"])}

    def _requests(self) -> Json:
        told: Json = self.server.http.get(f"{self.url}/admin/requests", headers=_ADMIN).json()
        return told

    @property
    def cold_tokens(self) -> int:
        """The prompt tokens that came from the store."""
        told = self.server.http.get(f"{self.url}/metrics", headers=_ADMIN).text
        return int(samples(told).get(_COLD, 0))


class Fleet:
    """`count` replicas for one `with`. They have one secret."""

    def __init__(self, model: Model, directory: Path, count: int) -> None:
        self._model = model
        self._directory = directory
        self._count = count
        self.replicas: list[Replica] = []

    def __enter__(self) -> "Fleet":
        try:
            for number in range(self._count):
                place = self._directory / f"replica-{number}"
                if number:
                    self._copy_secret(place / "kv")
                self.replicas.append(Replica(self._model, place))
                if number == 0:
                    self.replicas[0].server.wait_ready()
            for replica in self.replicas[1:]:
                replica.server.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for replica in self.replicas:
            replica.server.kill()

    @property
    def urls(self) -> set[str]:
        return {replica.url for replica in self.replicas}

    def _copy_secret(self, kept: Path) -> None:
        """The first server has made it, if it has a cold tier."""
        secret = self._directory / "replica-0" / "kv" / "secret"
        if secret.exists():
            kept.mkdir(parents=True)
            shutil.copy(secret, kept)


def free_port() -> int:
    """A port that nobody listens to now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
