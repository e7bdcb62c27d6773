"""Random worlds for the laws of liveness: what a server is set to, and what happens to it.

All is drawn beforehand, from anything that draws as `random.Random` does: a seed gives one world.
"""

from dataclasses import dataclass, replace
from random import Random

from omlx_server.core.blocks.block import CacheLayout, LayerKind
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.request import Request, RequestId, SamplingParams
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.speculation.methods import DraftVerification
from tests.core.simulator import HYBRID, KV, RECURRENT, STOP, VOCAB, WINDOWED, Foreseen
from tests.engine.pretend import Fate

LONG = CacheLayout(frozenset({LayerKind.DELTA}), block_size=16)
LAYOUTS = (None, KV, KV, LONG, WINDOWED, HYBRID, RECURRENT)
LENGTHS = (1, 2, 5, 17, 30, 64, 100, 300)
MEMORIES = (None, 5_000, 9_000, 15_000, 40_000)
VERIFIES = (DraftVerification.NEVER, DraftVerification.ALONE, DraftVerification.ALWAYS)
FAULTS = ("crash", "memory", "late", "fails", "lost", "starves")


@dataclass(frozen=True)
class Arrive:
    request: Request
    model: int = 0


@dataclass(frozen=True)
class Leave:
    """A client is gone, or wants one choice no more. `number` counts arrivals, back from the last
    one."""

    number: int
    index: int | None = None


@dataclass(frozen=True)
class Change:
    """Other bounds."""

    rows: int
    share: float
    memory: int


@dataclass(frozen=True)
class Fault:
    """The next step that can be struck so is; the newest request is the cause if `guilty`."""

    kind: str
    guilty: bool
    model: int = 0


@dataclass(frozen=True)
class Work:
    """A job that takes so much memory for so many turns, once there is room for it."""

    nbytes: int
    turns: int


@dataclass(frozen=True)
class Reset:
    """Whatever of the cache is not in use goes; or the cold tier, for good."""

    model: int = 0
    cold: bool = False


@dataclass(frozen=True)
class Keep:
    """The prompt of an arrival is pinned, counted as `Leave` does."""

    number: int


Act = Arrive | Leave | Change | Fault | Work | Reset | Keep


@dataclass(frozen=True)
class Plan:
    """One world. `acts` come after so many seconds each. `memory` is None where it is not watched,
    `cold` where there is no cold tier; `fates` are those of the disk's jobs in turn."""

    limits: SchedulerLimits
    layouts: tuple[CacheLayout | None, ...]
    memory: int | None
    hot: HotBudget
    cold: int | None
    listed: bool
    write_through: bool
    fates: tuple[Fate, ...]
    acts: tuple[tuple[float, Act], ...]


def draw(rng: Random) -> Plan:
    """A world of one model or two."""
    chunk = rng.choice((4, 16, 128))
    limits = SchedulerLimits(
        max_batch_size=rng.choice((1, 2, 4, 8)),
        max_queue=24,
        prefill_chunk_tokens=chunk,
        max_batched_tokens=max(chunk, rng.choice((16, 64))),
        decode_share=rng.choice((0.0, 0.2)),
        verify=rng.choice(VERIFIES),
        fair=rng.choice((True, True, False)),
    )
    hot = rng.choice((0, 400, 2_000, 1 << 30))
    memory = rng.choice(MEMORIES)
    models = rng.choice((1, 1, 2))
    return Plan(
        limits=limits,
        layouts=tuple(rng.choice(LAYOUTS) for _ in range(models)),
        memory=memory,
        hot=HotBudget(hot, rng.choice((hot // 2, hot)), lattice_start=8),
        cold=rng.choice((None, 0, 4_000, 1 << 20)),
        listed=rng.choice((True, True, False)),
        write_through=rng.choice((False, True)),
        fates=tuple(_fate(rng) for _ in range(rng.choice((1, 3, 7)))),
        acts=tuple(_acts(rng, models)),
    )


def _fate(rng: Random) -> Fate:
    seconds = rng.choice((0.0, 0.0, 0.01, 0.2, 3.0))
    return rng.choice(
        (Fate(seconds), Fate(seconds), Fate(seconds), Fate(seconds, "damaged"), Fate(never=True))
    )


def _acts(rng: Random, models: int) -> list[tuple[float, Act]]:
    stems = [tuple(rng.randrange(VOCAB - 1) for _ in range(8)) for _ in range(2)]
    acts = list[tuple[float, Act]]()
    pace = rng.choice((0.0, 0.02, 0.3))
    unguilty, most = 0, rng.choice((1, 1, 1, 9))
    for number in range(rng.choice((3, 8, 20, 40))):
        act = _act(rng, number, models, stems)
        if isinstance(act, Fault) and act.kind in ("crash", "late") and not act.guilty:
            unguilty += 1  # three of them end a model
            act = replace(act, kind="fails" if unguilty > most else act.kind)
        acts.append((rng.choice((0.0, pace)), act))
    return acts


def _act(rng: Random, number: int, models: int, stems: list[tuple[int, ...]]) -> Act:
    what = rng.randrange(100)
    model = rng.randrange(models)
    if what < 60:
        return Arrive(_request(rng, number, stems), model)
    if what < 78:
        return Leave(rng.randrange(6), rng.choice((None, None, 0, 1)))
    if what < 82:
        memory = rng.choice([size for size in MEMORIES if size])
        return Change(rng.choice((1, 2, 4, 8)), rng.choice((0.0, 0.2)), memory)
    if what < 90:
        return Fault(rng.choice(FAULTS), rng.choice((True, False)), model)
    if what < 95:
        return Work(rng.choice((500, 3_000, 8_000)), rng.choice((1, 5, 30)))
    if what < 98:
        return Reset(model, rng.choice((False, False, True)))
    return Keep(rng.randrange(6))


def _request(rng: Random, number: int, stems: list[tuple[int, ...]]) -> Request:
    """Prompts begin alike, and those of one stem go on alike for a while."""
    length = rng.choice(LENGTHS)
    stem = rng.choice(stems)
    tokens = (stem * (length // len(stem) + 1))[:length]
    own = min(length, rng.choice((0, 1, 10)))
    tail = tuple((number + at) % (VOCAB - 1) for at in range(own))
    return Request(
        RequestId(f"r{number}"),
        tokens[: length - own] + tail,
        SamplingParams(
            max_tokens=rng.choice((1, 2, 5, 20, 60)),
            stop_ids=rng.choice((frozenset({STOP}), frozenset[int]())),
        ),
        n=rng.choice((1, 1, 1, 2, 4)),
        priority=rng.choice((0, 0, 0, 1, 5)),
        salt=rng.choice((b"", b"", b"two")),
        owner=rng.choice((b"one", b"two")),
        deadline=rng.choice((None, None, None, 1.0, 8.0)),
        constraint=Foreseen() if rng.randrange(3) == 2 else None,  # type: ignore[arg-type]
    )
