"""What may take too long at some token is run apart: it ends alone, and leaves nothing behind."""

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from omlx_server.core.request import Constraint
from omlx_server.errors import Unavailable
from omlx_server.text.grammar import to_grammar
from omlx_server.text.grammar.bounds import symbols_allowed
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.grammar.prover import ApartConstraint, Prover
from omlx_server.text.grammar.to_grammar import GrammarSpec
from tests.text.grammar import bombs
from tests.text.grammar.walks import Words

LIST = 'root ::= item ("," item)*\nitem ::= [0-9]+ | "none"\n'
BOMBS: dict[str, Callable[[], GrammarSpec]] = {
    "few ambiguous rules": lambda: to_grammar.grammar(bombs.ambiguous(30), "x"),
    "many ambiguous rules": lambda: to_grammar.grammar(bombs.ambiguous(1500), "x"),
    "a product of patterns": lambda: to_grammar.grammar(bombs.intersected(24), "x"),
    "alternatives that look alike": lambda: to_grammar.json_schema(bombs.alternatives(1000), "x"),
}


@pytest.fixture(scope="module")
def few(tiny_words: Words) -> Iterator[Grammars]:
    """There may be two at once."""
    made = Grammars(tiny_words.vocabulary)
    made.most_apart = 2
    yield made
    made.close()


def exploded(constraint: Constraint, ends: list[int], most: int = 2000) -> int:
    """The number of tokens after which its problem came, in an answer that does not end before."""
    chance = random.Random(1)
    for taken in range(most):
        if constraint.problem is not None:
            return taken
        open_ones = [token for token in allowed_of(constraint) if token not in ends]
        constraint.take(chance.choice(open_ones))
    raise AssertionError(f"it did not go off in {most} tokens")


def allowed_of(constraint: Constraint) -> list[int]:
    mask = int.from_bytes(constraint.mask(), "little")
    return [token for token in range(mask.bit_length()) if mask >> token & 1]


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_that_goes_off_late_is_a_problem_of_its_own(
    few: Grammars, tiny_words: Words, name: str
) -> None:
    """Each would take minutes, or more memory than there is."""
    wanted = BOMBS[name]()
    first, beside = few.compile(wanted), few.compile(to_grammar.grammar(LIST, "x"))
    row = first.copy()
    before = beside.copy().mask()
    assert exploded(row, tiny_words.vocabulary.eos_ids) >= 48
    assert row.too_costly and "too expensive at token" in (row.problem or "")
    assert row.forced() == [] and allowed_of(row) == tiny_words.vocabulary.eos_ids
    row.take(tiny_words.spell("a")[0])
    assert row.problem is not None
    # Others of another grammar go on; the same grammar can be asked for again.
    assert beside.mask() == before and beside.problem is None
    assert few.compile(wanted).problem is None and few.apart == 2


def test_a_process_that_was_stuck_is_gone(few: Grammars, tiny_words: Words) -> None:
    constraint = few.compile(BOMBS["a product of patterns"]())
    there = few.apart
    exploded(constraint, tiny_words.vocabulary.eos_ids)
    assert few.apart == there - 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no niceness")
def test_only_what_nobody_waits_for_is_nice(few: Grammars) -> None:
    """The server's steps wait for an answer's next mask: others that compile do not go first."""
    few.compile(to_grammar.grammar(LIST, "x"))
    children = psutil.Process().children()
    nice = {child.pid: sorted(niceness(child)) for child in children if "trial" in cmdline(child)}
    assert nice
    assert all(found[0] == psutil.Process().nice() < found[-1] for found in nice.values()), nice


def cmdline(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


def niceness(process: psutil.Process) -> list[int]:
    """Of each thread: the 19th field of its status, the 17th behind its name."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    texts = [(task / "stat").read_text().rpartition(")")[2] for task in tasks]
    return [int(text.split()[16]) for text in texts]


def test_an_answer_is_the_same_apart_and_within(tiny: Grammars, tiny_words: Words) -> None:
    """Copies, and a row that comes back and takes all of its tokens again."""
    apart = tiny.compile(to_grammar.grammar(r"start: /[a-c]{1,3}(, [a-c]{1,3}){2,4}/", "grammar"))
    within = tiny.compile(to_grammar.regex("[a-c]{1,3}(, [a-c]{1,3}){2,4}", "regex"))
    assert isinstance(apart, ApartConstraint)
    assert not isinstance(within, ApartConstraint)
    chance, taken = random.Random(3), list[int]()
    while not apart.done:
        assert apart.mask() == within.mask()
        back = tiny.compile(
            to_grammar.grammar(r"start: /[a-c]{1,3}(, [a-c]{1,3}){2,4}/", "grammar")
        )
        for token in taken:
            back.take(token)
        assert back.mask() == apart.copy().mask() == apart.mask()
        taken.append(chance.choice(allowed_of(apart)))
        apart.take(taken[-1])
        within.take(taken[-1])
        if taken[-1] in tiny_words.vocabulary.eos_ids:
            break
    assert len(taken) > 5


def test_a_wrong_token_is_not_the_grammars_fault(tiny: Grammars, tiny_words: Words) -> None:
    constraint = tiny.compile(to_grammar.grammar(LIST, "grammar"))
    wrong = tiny_words.spell("x")[0]
    constraint.take(wrong)
    assert constraint.problem == f"token {wrong} does not fit the grammar"
    assert not constraint.too_costly


def test_there_are_so_many_processes_and_those_that_nobody_uses_make_room(
    few: Grammars, tiny_words: Words
) -> None:
    held = [few.compile(to_grammar.grammar(f'start: "{i}"*', "x")) for i in range(2)]
    with pytest.raises(Unavailable, match="in use"):
        few.compile(to_grammar.grammar('start: "2"*', "x"))
    held.pop()
    constraint = few.compile(to_grammar.grammar('start: "2"*', "x"))
    assert few.apart == 2 and held[0].mask() and constraint.problem is None


def test_what_is_left_of_a_model_that_went_away_is_a_problem(tiny_words: Words) -> None:
    grammars = Grammars(tiny_words.vocabulary)
    constraint = grammars.compile(to_grammar.grammar(LIST, "grammar"))
    grammars.close()
    constraint.take(tiny_words.spell("1")[0])
    assert constraint.problem is not None
    assert allowed_of(constraint) == tiny_words.vocabulary.eos_ids


def test_what_is_small_and_honest_runs_within() -> None:
    optional = {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}], "default": None}
    honest = {
        "$defs": {"tag": {"type": "string", "pattern": "^[a-z]+$"}},
        "type": "object",
        "properties": {"when": optional, "tag": {"$ref": "#/$defs/tag", "description": "One."}},
    }
    many = {"properties": {f"p{i}": optional for i in range(100)}}
    assert symbols_allowed([honest]) == symbols_allowed([many]) == 10_000
    patterns = [{"type": "string", "pattern": f"a{i}"} for i in range(2)]
    assert symbols_allowed([{"allOf": patterns}]) == 0
    assert symbols_allowed([{**patterns[0], "anyOf": patterns}]) == 0
    assert symbols_allowed([{"patternProperties": {"^a": {}, "^b": {}}}]) == 0
    assert symbols_allowed([{"anyOf": [{"const": i} for i in range(200)]}]) == 500


def test_a_closed_process_is_not_asked_through_pipes_of_others(
    tiny_words: Words, tmp_path: Path
) -> None:
    prover = Prover(tiny_words.vocabulary.described())
    prover.close()
    file = tmp_path / "file"
    with file.open("w"), (tmp_path / "other").open("w"):
        assert prover.ask({"a": 1}, 1) is None
    assert file.read_text() == (tmp_path / "other").read_text() == ""
