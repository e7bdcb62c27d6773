"""One word means one thing: the words that the project gave up do not come back, in code or docs.

The changelog and the records of decisions say what was, in the words of their time.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOOKED_AT = ("omlx_server", "tests", "scripts", "docs", "*.md")
KINDS = (".py", ".md", ".toml", ".sh", ".yml")
LEFT_OUT = ("CHANGELOG.md", "docs/decisions/", "tests/data/", "tests/test_words.py")

# The old word as it stood, a pattern that finds it, and what is said instead.
GIVEN_UP = (
    ("Lane(runner)", r"\bLane\w*", "ModelInstance, GeneratorClient, InstanceFactory"),
    ("change_lanes", r"\b(change|turn)_lanes\b", "instances"),
    ("Driver(lane)", r"\bDriver\b", "StepLoop"),
    ("Roster(cache)", r"\b[Rr]oster\w*", "SequenceQueues"),
    ("Pressure(guard)", r"\bPressure\b", "Admission"),
    ("memory.rungs", r"\b[Rr]ungs?\b", "Relief, reliefs"),
    ("guard.promises(caches)", r"\.promises?\b", "reserve, can_reserve"),
    ("pledged: int", r"\bpledged?\b", "reserved"),
    ("core/turns.py", r"\bcore[./](scheduler[./])?turns\b", "PrefillOrder, core/scheduler/order"),
    ("Ticket(root)", r"\bTicket\b", "PrefixHandle"),
    ("Seat(account)", r"\bSeat\b", "MemoryShare, MemoryHolder"),
    ("FoundReaders()", r"\b(FoundReaders?|find_readers?)\b", "FoundEncoders, find_encoders"),
    ("class Reader:", r"\bReader(Shape|Plan|s)?\b", "EncoderModel, EncoderShape, EncoderPlan"),
    ("launched.read()", r"\b[Ll]aunched\.read\b", "Launched.tokens"),
    ("cache.reading.want", r"\bcache\.reading\b", "cold_waits"),
    ("take_readers(key)", r"\btake_readers\b", "take_waiting"),
    ("Part.STATE", r"\bPart\.STATE\b", "Part.CHECKPOINT"),
    ("cut_state(caches)", r"\b(cut|next)_state\b|\bstate_key\b", "checkpoint"),
    ("mark_branches(found)", r"\bmark_branches\b", "checkpoint_branches"),
    ("surface_cache.py", r"\bsurface_\w+", "commands"),
    ("cli/door.py", r"\bcli[./]door\b|\btwo_questions\b", "listen address, first_chat"),
    ("omlx_server/build", r"\bomlx_server[./]build\b|`build/", "wiring, process"),
)


def looked_at() -> Iterator[Path]:
    for pattern in LOOKED_AT:
        for top in ROOT.glob(pattern):
            files = sorted(top.rglob("*")) if top.is_dir() else [top]
            yield from (file for file in files if file.suffix in KINDS)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    named = {file.relative_to(ROOT).as_posix(): file for file in looked_at()}
    return {
        name: file.read_text(encoding="utf-8")
        for name, file in named.items()
        if not name.startswith(LEFT_OUT)
    }


def test_words_that_were_given_up_stay_away(texts: dict[str, str]) -> None:
    assert len(texts) > 800, "not all of the project was looked at"
    found = [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]} (say: {instead})"
        for _, pattern, instead in GIVEN_UP
        for name, text in texts.items()
        for match in re.finditer(pattern, text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("old", "pattern", "instead"), GIVEN_UP)
def test_each_pattern_finds_its_word(old: str, pattern: str, instead: str) -> None:
    assert re.search(pattern, old) and not re.search(pattern, instead)
