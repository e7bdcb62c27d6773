"""Keys and values of full attention are in memory once, by MLX's own count: in a conversation whose
blocks are stored, in several on one prefix, and after a hit."""

import pytest

from omlx_server.compute.codecs.registry import codec_of, leaves
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.core.memory.kv import GROWTH
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.scheduler.limits import SchedulerLimits
from tests.compute.drive import Drive, sampling
from tests.compute.held import active
from tests.compute.kv.every_scheme import every_kind
from tests.compute.kv.models import quantised
from tests.compute.warm_runs import tiny, tokens
from tests.sweeps import wide

pytestmark = pytest.mark.usefixtures("either_order")

DAILY = ("llama", "gemma3_text", "qwen3_next", "deepseek_v3")
every_architecture = pytest.mark.parametrize(
    "architecture", [*DAILY, *wide(["qwen3", "gpt_oss", "lfm2"])]
)
PROMPT, ROWS = 3000, 6
LIMITS = SchedulerLimits(max_batch_size=8, prefill_chunk_tokens=512, max_batched_tokens=2048)
FEW_CHECKPOINTS = HotBudget(1 << 40, 1 << 40, lattice_start=4096)
SMALL = 64_000  # tokens, logits, the state of sampling


class Held:
    """A model, and what it holds beyond its weights."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.drive = Drive(loaded, LIMITS, 64, FEW_CHECKPOINTS)
        self.before = active()

    def decode(self, rows: int) -> None:
        """Go on until so many rows have decoded together."""
        while len(self.drive.runner._batch.rows) < rows:
            self.drive.step()
        for _ in range(3):
            self.drive.step()

    @property
    def now(self) -> int:
        return active() - self.before

    @property
    def token(self) -> int:
        """The bytes of a token in the layers of full attention."""
        runs = self.drive.runner.runs
        return max(run.token_bytes for run in runs._runs)

    def at_most(self, distinct: int, rows: int) -> float:
        """What may be held of so many distinct tokens, by so many rows."""
        apart = sum(payload.own_bytes for payload in self.drive.hot.values())
        whole = distinct * self.token + apart + self.copied
        return 1.15 * whole + rows * GROWTH * self.token + SMALL

    @property
    def copied(self) -> int:
        """What rows have in rings and states."""
        caches = leaves(self.drive.runner._batch.caches)
        return sum(leaf.nbytes for leaf in caches if not codec_of(leaf).by_reference)


def check_a_conversation(loaded: LoadedModel) -> None:
    held = Held(loaded)
    held.drive.add("one", tokens("one", PROMPT), sampling(40))
    held.decode(1)
    assert held.now <= held.at_most(PROMPT + 10, rows=1)
    held.drive.finish()
    assert held.now <= held.at_most(PROMPT + 40, rows=1)
    assert held.now >= 0.9 * PROMPT * held.token


@every_architecture
def test_a_conversation_and_its_blocks(architecture: str) -> None:
    check_a_conversation(tiny(architecture))


@every_kind
def test_a_conversation_in_few_bits_and_its_blocks(scheme: Scheme) -> None:
    check_a_conversation(quantised("llama", scheme))


@every_architecture
def test_rows_on_one_prefix(architecture: str) -> None:
    held, prefix = Held(tiny(architecture)), tokens("prefix", PROMPT)
    drive = held.drive
    drive.answer("first", prefix, 1)
    tails = [16 * number for number in range(1, ROWS + 1)]
    for number, tail in enumerate(tails):
        drive.add(f"{number}", [*prefix, *tokens(number, tail)], sampling(200))
    held.decode(ROWS)
    assert held.now <= held.at_most(PROMPT + sum(tails) + 10 * ROWS, rows=ROWS)


@every_architecture
def test_a_hit_copies_nothing(architecture: str) -> None:
    held = Held(tiny(architecture))
    prompt = tokens("hit", PROMPT)
    held.drive.answer("first", prompt, 1)
    before = held.now
    held.drive.add("again", prompt, sampling(40))
    held.decode(1)
    assert held.drive.admitted["again"].cached >= PROMPT - 64
    assert held.now - before <= GROWTH * held.token + held.copied + SMALL
