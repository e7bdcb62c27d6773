"""Transfers in parallel, from a hub of ours that counts what it is asked at the same time."""

import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub.errors import HfHubHTTPError

from omlx_server.models.hub.part import bytes_here
from omlx_server.models.hub.transfer import CONNECTIONS, FileTransfer, transfer
from omlx_server.process.logs import start_logging
from tests.models import fake_hub
from tests.models.fake_hub import COMMIT, Faults, Seen

REPO = "acme/tiny-4bit"
MEBIBYTE = 1 << 20
DATA = random.Random(4).randbytes(CONNECTIONS * MEBIBYTE)
ONE = {"model.safetensors": DATA}
SHARDS = {f"model-{n:05}.safetensors": DATA[n * 60_000 :][:60_000] for n in range(40)}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Stopped(Exception):
    pass


class Hub:
    """A hub that serves `files`, all of them large, and their transfer below `root`."""

    def __init__(self, address: str, files: dict[str, bytes], root: Path, asked: list[str]) -> None:
        self.files, self.root, self.asked = files, root, asked
        self.wanted = [
            FileTransfer(
                f"{address}/{REPO}/resolve/{COMMIT}/{name}",
                root / f"{name}.incomplete",
                root / name,
                len(data),
            )
            for name, data in files.items()
        ]
        self.told: list[int] = []

    def transfer(self, *pauses: float) -> int:
        return transfer(self.wanted, pauses, self.told.append)

    def check(self) -> None:
        """All files are whole, and nothing else is there."""
        assert {path.name: path.read_bytes() for path in self.root.iterdir()} == self.files


@contextmanager
def hub_of(
    files: dict[str, bytes], root: Path, faults: Faults | None = None, seen: Seen | None = None
) -> Iterator[Hub]:
    with fake_hub.serve(REPO, files, frozenset(files), faults, seen) as (address, asked):
        yield Hub(address, files, root, asked)


@pytest.mark.parametrize("files", [ONE, SHARDS], ids=["one file", "many shards"])
def test_all_connections_are_used_and_no_more(tmp_path: Path, files: dict[str, bytes]) -> None:
    """The first answers wait for each other: with one connection less, none would ever come."""
    faults, seen = Faults(), Seen()

    def open_gate() -> None:
        time.sleep(0.2)  # one more would come meanwhile
        faults.gate = None

    faults.gate = threading.Barrier(CONNECTIONS, open_gate)
    with hub_of(files, tmp_path, faults, seen) as hub:
        nbytes = sum(map(len, files.values()))
        assert hub.transfer() == nbytes
        hub.check()
    assert seen.peak == CONNECTIONS
    assert hub.told[-1] == nbytes
    assert len(hub.asked) == len(files) if len(files) > 1 else len(hub.asked) == CONNECTIONS


def test_few_files_are_open_at_once(tmp_path: Path) -> None:
    most = 0

    def count(done: int) -> None:
        nonlocal most
        # One descriptor of each part and its note, and of each connection at both of its ends.
        most = max(most, open_files())

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("open files are counted on Linux only")
    files = {f"{n}.safetensors": DATA[n * 1000 :][:1000] for n in range(200)}
    before = open_files()
    with hub_of(files, tmp_path, Faults(delay=0.02)) as hub:
        transfer(hub.wanted, (), count)
        hub.check()
    assert most - before <= 5 * CONNECTIONS


def test_a_server_that_lets_fewer_in_gets_fewer(tmp_path: Path) -> None:
    faults, seen = Faults(most=2, rate=4e6), Seen()
    with hub_of(SHARDS, tmp_path, faults, seen) as hub:
        assert hub.transfer(0.02, 0.02) == sum(map(len, SHARDS.values()))
        hub.check()
    assert seen.peak == 2


def test_a_server_that_knows_no_ranges_sends_the_file_once(tmp_path: Path) -> None:
    with hub_of(ONE, tmp_path, Faults(whole_only=True)) as hub:
        assert hub.transfer() == len(DATA)
        hub.check()
    assert hub.told[-1] == len(DATA)
    assert len([line for line in hub.asked if "bytes=" not in line]) == 1


def test_a_whole_file_that_breaks_off_begins_anew(tmp_path: Path) -> None:
    files = {"model.safetensors": DATA[:900_000]}
    faults = Faults(whole_only=True, cuts=[600_000])
    with hub_of(files, tmp_path, faults) as hub:
        assert hub.transfer() == 900_000 + 524_288
        hub.check()
    assert hub.told[-1] == 900_000


def test_answers_that_may_pass_are_asked_for_again(tmp_path: Path) -> None:
    with hub_of(SHARDS, tmp_path, Faults(busy=[429, 500, 503, 408])) as hub:
        hub.transfer(*[0.0] * 4)
        hub.check()
        assert len(hub.asked) == len(SHARDS) + 4


def test_an_answer_that_stays_ends_it_at_once(tmp_path: Path) -> None:
    with hub_of(SHARDS, tmp_path, Faults(busy=[403] * 99)) as hub:
        with pytest.raises(HfHubHTTPError):
            hub.transfer(60.0)
        assert len(hub.asked) <= CONNECTIONS


def test_all_that_fails_everywhere_is_told(tmp_path: Path) -> None:
    with hub_of(ONE, tmp_path, Faults(busy=[503] * 999)) as hub, pytest.raises(HfHubHTTPError):
        hub.transfer(0.01, 0.01)


def test_no_token_leaves_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    cdn, hub_seen = Seen(), Seen()
    with hub_of(ONE, tmp_path, seen=cdn) as far:
        address = far.wanted[0].url.partition(f"/{REPO}")[0].replace("127.0.0.1", "localhost")
        with hub_of(ONE, tmp_path, Faults(cdn=address), hub_seen) as hub:
            hub.transfer()
            hub.check()
    assert set(cdn.tokens) == {None} and len(cdn.tokens) == CONNECTIONS
    assert set(hub_seen.tokens) == {"Bearer hf_secret"}


def test_no_line_of_the_log_has_the_signature_of_an_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start_logging("info", "")
    with hub_of(ONE, tmp_path) as far, caplog.at_level(logging.INFO):
        address = far.wanted[0].url.partition(f"/{REPO}")[0]
        with hub_of(ONE, tmp_path, Faults(cdn=address)) as hub:
            hub.transfer()
        assert any("?Signature=" in line for line in far.asked)
    assert not [line for line in caplog.messages if "?" in line]


def test_a_range_that_is_not_named_is_not_taken(tmp_path: Path) -> None:
    faults = Faults(content_range="")
    with hub_of(ONE, tmp_path, faults) as hub:
        with pytest.raises(OSError, match="which range"):
            hub.transfer()
        faults.content_range = "bytes {first}-{last}/*"
        hub.transfer()
        hub.check()


def test_what_is_told_may_end_it_although_the_server_is_silent(tmp_path: Path) -> None:
    def tell(done: int) -> None:
        if done >= CONNECTIONS * 262_144:
            stopped.append(time.monotonic())
            raise Stopped

    stopped: list[float] = []
    faults = Faults(stall_after=300_000)
    with hub_of(ONE, tmp_path, faults) as hub:
        with pytest.raises(Stopped):
            transfer(hub.wanted, (), tell)
        # A server is waited for 30 seconds.
        assert time.monotonic() - stopped[0] < 10
        assert bytes_here(hub.wanted[0].part, len(DATA)) == CONNECTIONS * 262_144
        faults.stall_after, faults.delay = 0, 0.2
        assert hub.transfer() == len(DATA) - CONNECTIONS * 262_144
        hub.check()
        assert hub.told[0] == CONNECTIONS * 262_144


def test_a_transfer_that_is_stopped_leaves_no_thread(tmp_path: Path) -> None:
    def tell(done: int) -> None:
        if done:
            raise Stopped

    def fetching() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if "_fetch_all" in t.name]

    files = {name: data * 10 for name, data in SHARDS.items()}
    with hub_of(files, tmp_path, Faults(stall_after=300_000)) as hub:
        with pytest.raises(Stopped):
            transfer(hub.wanted, (), tell)
        latest = time.monotonic() + 10  # a silent server is waited for 30 seconds
        while fetching() and time.monotonic() < latest:
            time.sleep(0.02)
        assert not fetching()
        assert len(hub.asked) <= CONNECTIONS


def test_a_file_that_another_process_has_is_waited_for(tmp_path: Path) -> None:
    with hub_of(ONE, tmp_path, Faults(rate=10e6)) as hub:
        came: list[int] = []
        threads = [threading.Thread(target=lambda: came.append(hub.transfer())) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        hub.check()
    assert sorted(came) == [0, len(DATA)]
