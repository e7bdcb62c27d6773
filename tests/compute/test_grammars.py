"""Grammars on the starter model, in one batch with free rows: whatever the temperature, a finished
answer is what was asked for.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from omlx_server.compute.model.loader import LoadedModel, load
from omlx_server.core.request import Constraint, FinishReason
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.models.bundled import starter
from omlx_server.models.catalogue import STARTER
from omlx_server.settings import Settings
from omlx_server.text.grammar import to_grammar
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.grammar.vocabulary import Vocabulary
from omlx_server.text.tokenizer import Tokenizer
from tests.compute.drive import Drive, sampling
from tests.compute.oracle import greedy

pytestmark = pytest.mark.usefixtures("either_order")

LIMITS = SchedulerLimits(max_batch_size=8, prefill_chunk_tokens=64, max_batched_tokens=256)
PROMPT = "The weather in Paris as JSON:"
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "a_rather_long_name_of_a_property": {"type": "integer", "minimum": 0, "maximum": 9},
            "another_name_that_must_follow": {"enum": ["warm", "cold"]},
        },
        "required": ["a_rather_long_name_of_a_property", "another_name_that_must_follow"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    {"type": "string", "maxLength": 5},
]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    directory: Path = Settings().models.dirs[0]
    return load(starter.ensure(STARTER, directory, variant="f32"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    directory: Path = Settings().models.dirs[0]
    return Tokenizer.load(starter.ensure(STARTER, directory, variant="f32"))


@pytest.fixture(scope="module")
def constraints(loaded: LoadedModel, tokenizer: Tokenizer) -> Iterator[list[Constraint]]:
    grammars = Grammars(Vocabulary(tokenizer, loaded.dims.vocab))
    yield [grammars.compile(to_grammar.json_schema(schema, "schema")) for schema in SCHEMAS]
    grammars.close()


def test_hot_answers_in_one_batch_are_valid_and_free_rows_are_as_alone(
    loaded: LoadedModel, tokenizer: Tokenizer, constraints: list[Constraint]
) -> None:
    prompt = tokenizer.encode(PROMPT)
    drive = Drive(loaded, LIMITS, 64)
    drive.add("free", prompt, sampling(20))
    for number in range(6):
        hot = sampling(120, temperature=2.0, seed=number, stop_ids=tokenizer.eos_ids)
        drive.add(f"{number}", prompt, hot, constraint=constraints[number % 3])
        drive.step()
    drive.finish()
    assert drive.answers["free/0"] == greedy(loaded.model, prompt, 20)
    finished = 0
    for number in range(6):
        if drive.ends[f"{number}/0"] is FinishReason.STOP:
            text = tokenizer.decode(drive.answers[f"{number}/0"])
            Draft202012Validator(SCHEMAS[number % 3]).validate(json.loads(text))
            finished += 1
    assert finished >= 4


def test_alone_most_of_an_object_is_fed_ahead(
    loaded: LoadedModel, tokenizer: Tokenizer, constraints: list[Constraint]
) -> None:
    drive = Drive(loaded, LIMITS, 64)
    params = sampling(120, stop_ids=tokenizer.eos_ids)
    drive.add("x", tokenizer.encode(PROMPT), params, constraint=constraints[0])
    steps = 0
    while drive.instance.scheduler.has_work:
        drive.step()
        steps += 1
    answer = drive.answers["x/0"]
    assert drive.ends["x/0"] is FinishReason.STOP
    Draft202012Validator(SCHEMAS[0]).validate(json.loads(tokenizer.decode(answer)))
    assert steps < len(answer) * 0.7
