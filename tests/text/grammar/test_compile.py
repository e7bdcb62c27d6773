"""Compiling ends in time whatever it is given, harms nobody else, and happens once."""

import asyncio
import gc
import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from omlx_server.errors import BadRequest
from omlx_server.text.grammar import to_grammar
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.grammar.to_grammar import GrammarSpec
from omlx_server.text.grammar.vocabulary import Vocabulary
from tests.text.grammar.conftest import TINY_WIDTH
from tests.text.grammar.walks import Words, allowed, walk

SECONDS = 1.0
GRACE = 30.0  # for a child to start, on a machine with other work
TRIES = 5


def chain(link: Callable[[int], Any], length: int = 10_000) -> dict[str, Any]:
    """A reference to a reference to …"""
    links = {f"d{i}": link(i + 1) for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {"type": "object"}}}


def ref(i: int) -> dict[str, Any]:
    return {"$ref": f"#/$defs/d{i}"}


def nested(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def rules(count: int, end: str, rule: Callable[[int], str]) -> str:
    return "\n".join(
        ["start: " + rule(0), *(rule(i) + ": " + rule(i + 1) for i in range(count))]
    ) + (f"\n{rule(count)}: {end}")


def schema(value: Any) -> Callable[[], GrammarSpec]:
    return lambda: to_grammar.json_schema(value, "schema")


def regex(value: str) -> Callable[[], GrammarSpec]:
    return lambda: to_grammar.regex(value, "schema")


def grammar(value: str) -> Callable[[], GrammarSpec]:
    return lambda: to_grammar.grammar(value, "schema")


BOMBS: dict[str, Callable[[], GrammarSpec]] = {
    "too deep": schema(nested(3000)),
    "endless reference": schema({"$ref": "#"}),
    "two endless references": schema({"$ref": "#/$defs/a", "$defs": {"a": ref(0), "d0": ref(0)}}),
    "chain of references": schema(chain(ref)),
    "chain of intersections": schema(chain(lambda i: {"allOf": [ref(i), {"type": "object"}]})),
    "intersected patterns": schema(
        {"allOf": [{"type": "string", "pattern": f"a{{{i}}}.*b{i}"} for i in range(100)]}
    ),
    "crossed alternatives": schema(
        {
            "allOf": [
                {"anyOf": [{"type": "object", "required": [f"a{i}_{j}"]} for i in range(10)]}
                for j in range(12)
            ]
        }
    ),
    "large factor": schema({"type": "integer", "multipleOf": 999_983}),
    "many properties": schema({"properties": {f"p{i}": {} for i in range(40_000)}}),
    "nothing fits": schema({"type": "integer", "minimum": 3, "maximum": 2}),
    "repeated patterns": schema({"type": "string", "pattern": "^((a{1000}){1000}){1000}$"}),
    "large constant": schema({"const": "ab" * 200_000}),
    "repeated stars": regex("(a|b)*" * 1_000_000),
    "nested groups": regex("(" * 20_000 + "a" + ")" * 20_000),
    "chain of rules": grammar(rules(20_000, '"a"', lambda i: f"r{i}")),
    "chain of terminals": grammar(rules(20_000, '"a"', lambda i: f"R{i}")),
    "intersected terminals": grammar(
        "start: A\nA: " + " & ".join(f"/(.*)w{i}(.*)/" for i in range(60))
    ),
    "endless rule": grammar("start: a\na: b\nb: a"),
    "nested gbnf": grammar("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000),
}


@pytest.fixture(scope="module")
def hasty(tiny_words: Words) -> Iterator[Grammars]:
    made = Grammars(tiny_words.vocabulary)
    made.seconds = SECONDS
    yield made
    made.close()


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_a_bad_request_in_time(hasty: Grammars, name: str) -> None:
    start = time.monotonic()
    with pytest.raises(BadRequest) as raised:
        hasty.compile(BOMBS[name]())
    assert time.monotonic() - start < SECONDS + GRACE
    assert raised.value.param == "schema"
    assert "\n" not in raised.value.message
    assert len(raised.value.message) < 400


def test_what_is_large_but_harmless_is_taken(tiny: Grammars, tiny_words: Words) -> None:
    large = {
        "type": "object",
        "description": "d" * 500_000,
        "properties": {f"p{i}": {"enum": [f"{i} {j}" for j in range(20)]} for i in range(200)},
        "required": [f"p{i}" for i in range(40)],
        "additionalProperties": False,
    }
    constraint = tiny.compile(to_grammar.json_schema(large, "schema"))
    assert len(json.loads(walk(constraint, tiny_words, 1, most=2000))) >= 40


def test_deep_but_not_too_deep_is_taken(tiny: Grammars, tiny_words: Words) -> None:
    constraint = tiny.compile(to_grammar.json_schema(nested(45), "schema"))
    assert isinstance(json.loads(walk(constraint, tiny_words, 1, most=2000)), list)


def test_other_grammars_and_the_loop_go_on_while_a_bomb_burns(tiny_words: Words) -> None:
    """Once is enough: the machine itself may pause."""
    found = []
    for _ in range(TRIES):
        others, bomb, pause = beside_a_bomb(tiny_words)
        found.append((bomb - others, pause))
        if others < bomb and pause < 0.5:
            return
    raise AssertionError(found)


def beside_a_bomb(tiny_words: Words) -> tuple[float, float, float]:
    """When all others were compiled, when the bomb ended, and the longest pause of the loop."""
    grammars = Grammars(tiny_words.vocabulary)
    grammars.seconds = SECONDS

    async def burn() -> float:
        with pytest.raises(BadRequest, match="longer than 1 seconds"):
            await grammars.constraint(BOMBS["intersected terminals"]())
        return time.monotonic()

    async def compile_others() -> float:
        for i in range(10):
            await grammars.constraint(to_grammar.regex(f"other{i}", "regex"))
        return time.monotonic()

    async def longest_pause(until: "asyncio.Task[float]") -> float:
        longest, last = 0.0, time.monotonic()
        while not until.done():
            await asyncio.sleep(0.002)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        return longest

    async def all_of_it() -> tuple[float, float, float]:
        # Both children are there before the clock runs.
        await asyncio.gather(
            *(grammars.constraint(to_grammar.regex(f"{i}+", "x")) for i in range(2))
        )
        bomb = asyncio.create_task(burn())
        pause = asyncio.create_task(longest_pause(bomb))
        await asyncio.sleep(0.05)
        return await compile_others(), await bomb, await pause

    try:
        return asyncio.run(all_of_it())
    finally:
        grammars.close()


def test_a_grammar_is_compiled_once_and_handed_out_fresh(tiny: Grammars, tiny_words: Words) -> None:
    wanted = to_grammar.regex("once [a-z]+", "regex")
    first = tiny.compile(wanted)
    before, start = tiny.compiled, first.mask()
    first.take(allowed(first)[0])
    assert tiny.compile(to_grammar.regex("once [a-z]+", "another_field")).mask() == start
    assert tiny.compiled == before


def test_those_who_ask_at_once_share_one_compile(tiny: Grammars) -> None:
    before = tiny.compiled
    wanted = to_grammar.choice([f"shared {i}" for i in range(3000)], "choice")
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(tiny.compile, [wanted] * 6))
    assert tiny.compiled == before + 1
    assert len({constraint.mask() for constraint in found}) == 1


def test_the_cache_is_bounded_and_forgets_the_oldest(tiny_words: Words) -> None:
    grammars = Grammars(tiny_words.vocabulary)
    grammars.entries = 3
    specs = [to_grammar.regex(f"[a-z]{{{i}}}", "regex") for i in range(1, 6)]
    try:
        for wanted in specs[:3]:
            grammars.compile(wanted)
        grammars.compile(specs[0])  # used again: the second is the oldest now
        assert grammars.compiled == 3
        for wanted in specs[3:]:
            grammars.compile(wanted)
        assert len(grammars) == 3
        grammars.compile(specs[0])
        assert grammars.compiled == 5
        grammars.compile(specs[1])
        assert grammars.compiled == 6
    finally:
        grammars.close()


def test_the_cache_is_bounded_in_bytes_as_well(tiny_words: Words) -> None:
    most = 4 << 20
    grammars = Grammars(tiny_words.vocabulary)
    grammars.most_bytes = most
    assert grammars.nbytes == 0
    try:
        for number in range(6):
            names = [f"field_{number}_{i}" for i in range(300)]
            shape = {"type": "object", "properties": {name: {} for name in names}}
            grammars.compile(to_grammar.json_schema(shape, "json_schema"))
            assert 0 < grammars.nbytes <= most
        assert 1 < len(grammars) < 6
        grammars.compile(to_grammar.choice([f"one too large {i}" for i in range(3000)], "choice"))
        assert len(grammars) == 1
    finally:
        grammars.close()


def test_a_refusal_is_not_kept_and_names_the_field_of_each_request(tiny: Grammars) -> None:
    known = len(tiny)
    for param in ("guided_regex", "structured_outputs.regex"):
        with pytest.raises(BadRequest, match="unclosed group") as raised:
            tiny.compile(to_grammar.regex("(", param))
        assert raised.value.param == param
    assert len(tiny) <= known


def test_a_grammar_whose_lexer_came_to_its_limits_is_compiled_anew(
    tiny: Grammars, tiny_words: Words
) -> None:
    """Copies share the lexer: one answer's problem must not be that of all later ones."""
    wanted = to_grammar.regex("(a|b)*a(a|b){18}", "regex")
    constraint, other = tiny.compile(wanted), tiny.compile(wanted)
    letters = [tiny_words.spell(letter)[0] for letter in "ab"]
    chance = random.Random(1)
    while constraint.problem is None:
        constraint.take(chance.choice(letters))
    assert constraint.problem.endswith("lexer error: too many expressions constructed")
    other.take(letters[0])
    other.mask()
    assert other.problem is not None
    assert tiny.compile(wanted).problem is None


def test_a_dead_child_is_replaced(tiny_words: Words) -> None:
    grammars = Grammars(tiny_words.vocabulary)
    grammars.seconds = SECONDS
    try:
        for i in range(2):
            with pytest.raises(BadRequest, match="nested too deeply or needs too much memory"):
                grammars.compile(BOMBS["chain of references"]())
            assert grammars.compile(to_grammar.regex(f"after{i}", "regex")).problem is None
    finally:
        grammars.close()


def test_closing_leaves_no_child_behind(tiny_words: Words) -> None:
    """A child that was not waited for is a ResourceWarning, and warnings are errors here."""
    grammars = Grammars(tiny_words.vocabulary)
    grammars.compile(to_grammar.regex("a", "regex"))
    grammars.close()
    gc.collect()


def test_a_warm_start_leaves_little_to_wait_for(tiny_words: Words) -> None:
    warm = min(first_compile(tiny_words, warm=True) for _ in range(TRIES))
    cold = min(first_compile(tiny_words, warm=False) for _ in range(TRIES))
    assert warm < cold / 2  # of which a child alone takes the most to start


def test_a_small_memory_has_no_child_before_the_first_grammar(tiny_words: Words) -> None:
    for limit, begun in ((4 * 2**30 - 1, False), (4 * 2**30, True)):
        grammars = Grammars(Vocabulary(tiny_words.tokenizer, TINY_WIDTH))
        try:
            grammars.warm(limit)
            assert bool(grammars.bytes_apart) is begun
            grammars.compile(to_grammar.regex("a", "regex"))
            assert grammars.bytes_apart
        finally:
            grammars.close()


def first_compile(tiny_words: Words, *, warm: bool) -> float:
    """Its seconds."""
    grammars = Grammars(Vocabulary(tiny_words.tokenizer, TINY_WIDTH))
    try:
        if warm:
            grammars.warm()
        start = time.monotonic()
        grammars.compile(to_grammar.regex("a", "regex"))
        return time.monotonic() - start
    finally:
        grammars.close()
