"""Other settings for models that are loaded, by the parts that a server is made of."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from omlx_server.compute.model.fingerprint import fingerprint
from omlx_server.core.blocks.pins import Unpinned
from omlx_server.core.request import Request, RequestId
from omlx_server.core.work import finish
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import ConfigError
from omlx_server.models.locate import Located
from omlx_server.process.apply import change_instances
from omlx_server.process.reload import NotYet
from omlx_server.settings import Settings, load
from omlx_server.store.pin_file import pins_of_bytes
from omlx_server.wiring.model_factory import InstanceFactory
from tests.api.harness import wait_for
from tests.compute.drive import sampling
from tests.service.made import save_small

PROMPT = tuple(range(2, 60))
SALT = b"one holder"


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
def instances(tmp_path: Path, model: Located) -> Iterator[InstanceFactory]:
    instances = InstanceFactory(settings(tmp_path))
    finish(instances.making(model))
    yield instances
    instances.close(5)


def only(instances: InstanceFactory) -> ModelInstance:
    [share] = instances.account.shares
    assert isinstance(share.holder, ModelInstance)
    return share.holder


def test_bounds_reach_the_instance_and_those_that_come(
    instances: InstanceFactory, model: Located, tmp_path: Path
) -> None:
    instance, cold = only(instances), instances.cold
    assert cold is not None and instance.watch is not None
    was = instance.cache.budget.nbytes
    change_instances(instances, settings(tmp_path, memory__limit="3GB"))
    assert instance.watch.guard.limit == instances.account.limit == 3 * 10**9
    assert 0.8 * 10**9 < was - instance.cache.budget.nbytes < 1.2 * 10**9
    new = settings(
        tmp_path,
        cache__hot_cache_max_bytes="1MiB",
        cache__cold_cache_max_bytes="2MiB",
        scheduler__max_queue="1",
    )
    change_instances(instances, new)
    finish(instances.making(model))
    first, second = (share.holder for share in instances.account.shares)
    for each in (first, second):
        assert isinstance(each, ModelInstance)
        assert each.cache.budget.nbytes == 1 << 20
        full = [each.scheduler.add(request(str(n))) is not None for n in range(2)]
        assert full == [False, True]
    assert cold.index.budget == 2 << 20
    instance.start_over()
    assert instance.cache.budget.nbytes == 1 << 20


def test_each_model_has_its_own_overrides(
    instances: InstanceFactory, model: Located, tmp_path: Path
) -> None:
    finish(instances.making(replace(model, names=("org/other",))))
    own = '{"org/tiny": {"speculation": {"mode": "ngram"}}}'
    change_instances(instances, settings(tmp_path, models__overrides=own))
    modes = [instance._limits.speculation for instance in instances.at_work()]
    assert modes == ["ngram", "auto"]


def request(name: str, tokens: tuple[int, ...] = PROMPT) -> Request:
    return Request(RequestId(name), tokens, sampling(4))


def test_a_limit_under_which_nobody_could_be_served_changes_nothing(
    instances: InstanceFactory, tmp_path: Path
) -> None:
    instance = only(instances)
    before = instance.cache.budget
    new = settings(tmp_path, memory__limit="1KB", cache__hot_cache_max_bytes="1MiB")
    with pytest.raises(ConfigError, match="less than the weights") as caught:
        change_instances(instances, new)
    assert not isinstance(caught.value, NotYet)
    assert (instances.account.limit, instance.cache.budget) == (4 * 10**9, before)
    instance.scheduler.add(request("long", PROMPT * 60))
    tight = settings(tmp_path, memory__limit=str(instances.account.weights + 2**26 + 2**16))
    with pytest.raises(NotYet, match="requests at work"):
        change_instances(instances, tight)
    assert (instances.account.limit, instance.cache.budget) == (4 * 10**9, before)
    instance.scheduler.cancel(RequestId("long"))
    change_instances(instances, tight)
    assert instances.account.limit == tight.memory.limit


def test_memory_only_from_now_on(
    instances: InstanceFactory, model: Located, tmp_path: Path
) -> None:
    kv = tmp_path / "kv"
    wait_for(lambda: list(kv.glob("*/namespace.json")), 10)  # written last, by another thread
    before = {path: path.stat().st_mtime_ns for path in kv.rglob("*")}
    change_instances(instances, settings(tmp_path, cache__hot_cache_only="true"))
    assert instances.cold is None and only(instances).tiers.cold is None
    finish(instances.making(model))
    assert all(
        isinstance(s.holder, ModelInstance) and s.holder.tiers.cold is None
        for s in instances.account.shares
    )
    assert {path: path.stat().st_mtime_ns for path in kv.rglob("*")} == before
    other = InstanceFactory(settings(tmp_path))
    finish(other.making(model))
    assert other.cold is not None and other.cold._writable, "nobody else may write there"
    other.close(5)


def test_a_pin_that_is_ended_in_memory_only_stays_in_its_file(
    instances: InstanceFactory, model: Located, tmp_path: Path
) -> None:
    """The directory may be another server's by now. Who ends it is told."""
    file = tmp_path / "kv" / "pins.json"
    kept, ended, gone = (pinned(instances, first) for first in (2, 3, 4))
    wait_for(lambda: told_in(file) == [kept, ended, gone], 10)
    assert instances.pins.end(gone, SALT) is Unpinned.ENDED
    wait_for(lambda: told_in(file) == [kept, ended], 10)
    before = file.stat().st_mtime_ns
    change_instances(instances, settings(tmp_path, cache__hot_cache_only="true"))
    later = pinned(instances, 5)
    assert instances.pins.end(ended, b"somebody else") is Unpinned.UNKNOWN
    assert instances.pins.end(ended, SALT) is Unpinned.STORED
    assert instances.pins.end(ended, SALT) is Unpinned.UNKNOWN
    assert instances.pins.end(later, SALT) is Unpinned.ENDED
    assert [report.pin.id for report in instances.pins.reports(SALT)] == [kept]
    assert pinned(instances, 3) == ended
    assert instances.pins.end(ended, SALT) is Unpinned.STORED, "its file is what it was"
    assert told_in(file) == [kept, ended]
    assert file.stat().st_mtime_ns == before
    other = InstanceFactory(settings(tmp_path))
    finish(other.making(model))
    assert [report.pin.id for report in other.pins.reports(SALT)] == [kept, ended]
    other.close(5)


def pinned(instances: InstanceFactory, first: int) -> str:
    """The id of a pin on a prompt that begins so."""
    pin = only(instances).pin((first, *PROMPT * 2), SALT, "org/tiny")
    assert pin is not None
    return instances.pins.save(pin, SALT).pin.id


def told_in(file: Path) -> list[str]:
    """The ids of pins in a file of theirs."""
    return [pin.id for pin in pins_of_bytes(file.read_bytes())] if file.exists() else []


def test_nothing_is_noted_down_once_it_is_memory_only(
    instances: InstanceFactory, model: Located, tmp_path: Path
) -> None:
    """What a model is asked for later reads all of its weights, and would note that down."""
    notes = tmp_path / "kv" / "fingerprints.json"
    asked_later = partial(instances.fingerprint, model, whole=True)
    known = asked_later()
    assert notes.exists()
    notes.unlink()
    change_instances(instances, settings(tmp_path, cache__hot_cache_only="true"))
    assert asked_later() == known
    assert not notes.exists()


def test_what_is_found_out_while_it_becomes_memory_only_is_not_noted_down(
    model: Located, tmp_path: Path
) -> None:
    """Between the first and the last slice of a load with its probes."""
    instances = InstanceFactory(settings(tmp_path, memory__activation_reserve="auto"))
    loading = instances.making(model, known_as="0" * 64)
    for _ in range(6):
        next(loading)
    assert not (tmp_path / "kv").exists(), "it is too late"
    change_instances(instances, settings(tmp_path, cache__hot_cache_only="true"))
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
