"""Other settings for models that are loaded, by the parts that a server is made of."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from omlx_server.compute.model.fingerprint import fingerprint
from omlx_server.core.blocks.pins import Unpinned
from omlx_server.core.request import Request, RequestId
from omlx_server.core.work import finish
from omlx_server.engine.model_instance import Lane
from omlx_server.errors import ConfigError
from omlx_server.models.locate import Located
from omlx_server.process.live_models import change_lanes
from omlx_server.process.reload import NotYet
from omlx_server.settings import Settings, load
from omlx_server.store.pin_file import pins_of_bytes
from omlx_server.wiring.model_factory import Lanes
from tests.api.harness import wait_for
from tests.compute.drive import sampling
from tests.service.made import save_small

PROMPT = tuple(range(2, 60))
SALT = b"one tenant"


@pytest.fixture
def model(tmp_path: Path) -> Located:
    save_small(tmp_path / "tiny")
    return Located(tmp_path / "tiny", ("org/tiny",))


def settings(tmp_path: Path, **values: str) -> Settings:
    fixed = {
        "cache.cold_dir": str(tmp_path / "kv"),
        "cache.cold_min_free_disk": "0",
        "memory.activation_reserve": "64MB",
        "memory.limit": "4GB",
    }
    return load(overrides=fixed | {k.replace("__", "."): v for k, v in values.items()}).settings


@pytest.fixture
def lanes(tmp_path: Path, model: Located) -> Iterator[Lanes]:
    lanes = Lanes(settings(tmp_path))
    finish(lanes.making(model))
    yield lanes
    lanes.close(5)


def only(lanes: Lanes) -> Lane:
    [seat] = lanes.account.seats
    assert isinstance(seat.tenant, Lane)
    return seat.tenant


def test_bounds_reach_the_lane_and_those_that_come(
    lanes: Lanes, model: Located, tmp_path: Path
) -> None:
    lane, cold = only(lanes), lanes.cold
    assert cold is not None and lane.watch is not None
    was = lane.cache.budget.nbytes
    change_lanes(lanes, settings(tmp_path, memory__limit="3GB"))
    assert lane.watch.guard.limit == lanes.account.limit == 3 * 10**9
    assert 0.8 * 10**9 < was - lane.cache.budget.nbytes < 1.2 * 10**9
    new = settings(
        tmp_path,
        cache__hot_cache_max_bytes="1MiB",
        cache__cold_cache_max_bytes="2MiB",
        scheduler__max_queue="1",
    )
    change_lanes(lanes, new)
    finish(lanes.making(model))
    first, second = (seat.tenant for seat in lanes.account.seats)
    for each in (first, second):
        assert isinstance(each, Lane)
        assert each.cache.budget.nbytes == 1 << 20
        full = [each.scheduler.add(request(str(n)), 0.0) is not None for n in range(2)]
        assert full == [False, True]
    assert cold.index.budget == 2 << 20
    lane.start_over()
    assert lane.cache.budget.nbytes == 1 << 20


def request(name: str, tokens: tuple[int, ...] = PROMPT) -> Request:
    return Request(RequestId(name), tokens, sampling(4))


def test_a_limit_under_which_nobody_could_be_served_changes_nothing(
    lanes: Lanes, tmp_path: Path
) -> None:
    lane = only(lanes)
    before = lane.cache.budget
    new = settings(tmp_path, memory__limit="1KB", cache__hot_cache_max_bytes="1MiB")
    with pytest.raises(ConfigError, match="less than the weights") as caught:
        change_lanes(lanes, new)
    assert not isinstance(caught.value, NotYet)
    assert (lanes.account.limit, lane.cache.budget) == (4 * 10**9, before)
    lane.scheduler.add(request("long", PROMPT * 60), 0.0)
    tight = settings(tmp_path, memory__limit=str(lanes.account.weights + 2**26 + 2**16))
    with pytest.raises(NotYet, match="requests at work"):
        change_lanes(lanes, tight)
    assert (lanes.account.limit, lane.cache.budget) == (4 * 10**9, before)
    lane.scheduler.cancel(RequestId("long"))
    change_lanes(lanes, tight)
    assert lanes.account.limit == tight.memory.limit


def test_memory_only_from_now_on(lanes: Lanes, model: Located, tmp_path: Path) -> None:
    kv = tmp_path / "kv"
    before = {path: path.stat().st_mtime_ns for path in kv.rglob("*")}
    assert before
    change_lanes(lanes, settings(tmp_path, cache__hot_cache_only="true"))
    assert lanes.cold is None and only(lanes).cold is None
    finish(lanes.making(model))
    assert all(isinstance(s.tenant, Lane) and s.tenant.cold is None for s in lanes.account.seats)
    assert {path: path.stat().st_mtime_ns for path in kv.rglob("*")} == before
    other = Lanes(settings(tmp_path))
    finish(other.making(model))
    assert other.cold is not None and other.cold._writable, "nobody else may write there"
    other.close(5)


def test_a_pin_that_is_ended_in_memory_only_stays_in_its_file(
    lanes: Lanes, model: Located, tmp_path: Path
) -> None:
    """The directory may be another server's by now. Who ends it is told."""
    file = tmp_path / "kv" / "pins.json"
    kept, ended, gone = (pinned(lanes, first) for first in (2, 3, 4))
    assert lanes.pins.end(gone, SALT) is Unpinned.ENDED
    wait_for(lambda: told_in(file) == [kept, ended], 10)
    before = file.stat().st_mtime_ns
    change_lanes(lanes, settings(tmp_path, cache__hot_cache_only="true"))
    later = pinned(lanes, 5)
    assert lanes.pins.end(ended, b"somebody else") is Unpinned.UNKNOWN
    assert lanes.pins.end(ended, SALT) is Unpinned.STORED
    assert lanes.pins.end(ended, SALT) is Unpinned.UNKNOWN
    assert lanes.pins.end(later, SALT) is Unpinned.ENDED
    assert [report.pin.id for report in lanes.pins.of(SALT)] == [kept]
    assert pinned(lanes, 3) == ended
    assert lanes.pins.end(ended, SALT) is Unpinned.STORED, "its file is what it was"
    assert told_in(file) == [kept, ended]
    assert file.stat().st_mtime_ns == before
    other = Lanes(settings(tmp_path))
    finish(other.making(model))
    assert [report.pin.id for report in other.pins.of(SALT)] == [kept, ended]
    other.close(5)


def pinned(lanes: Lanes, first: int) -> str:
    """The id of a pin on a prompt that begins so."""
    pin = only(lanes).pin((first, *PROMPT * 2), SALT, "org/tiny")
    assert pin is not None
    return lanes.pins.made(pin).pin.id


def told_in(file: Path) -> list[str]:
    """The ids of pins in a file of theirs."""
    return [pin.id for pin in pins_of_bytes(file.read_bytes())] if file.exists() else []


def test_nothing_is_noted_down_once_it_is_memory_only(
    lanes: Lanes, model: Located, tmp_path: Path
) -> None:
    """What a model is asked for later reads all of its weights, and would note that down."""
    notes = tmp_path / "kv" / "fingerprints.json"
    asked_later = partial(lanes.fingerprint, model, whole=True)
    known = asked_later()
    assert notes.exists()
    notes.unlink()
    change_lanes(lanes, settings(tmp_path, cache__hot_cache_only="true"))
    assert asked_later() == known
    assert not notes.exists()


def test_what_is_found_out_while_it_becomes_memory_only_is_not_noted_down(
    model: Located, tmp_path: Path
) -> None:
    """Between the first and the last slice of a load with its probes."""
    lanes = Lanes(settings(tmp_path, memory__activation_reserve="auto"))
    loading = lanes.making(model, known_as="0" * 64)
    for _ in range(6):
        next(loading)
    assert not (tmp_path / "kv").exists(), "it is too late"
    change_lanes(lanes, settings(tmp_path, cache__hot_cache_only="true"))
    finish(loading)
    assert not (tmp_path / "kv").exists()


def test_a_fingerprint_that_was_begun_before_is_not_noted_down(
    model: Located, tmp_path: Path
) -> None:
    notes = tmp_path / "notes.json"
    known = fingerprint(model.path, notes, allowed=lambda: False)
    assert not notes.exists()
    assert fingerprint(model.path, notes) == known
    assert notes.exists()
