"""Rows with images beside rows of text: each gets what it gets alone, whoever comes and goes."""

import random
from dataclasses import replace

import pytest

from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.model.pairing import paired
from omlx_server.core.request import SamplingParams
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.speculation.methods import Method
from tests.compute.drive import Drive, sampling
from tests.compute.vision.prompts import (
    FAMILIES,
    LARGE,
    Told,
    answer,
    load_with_vision,
    picture,
    seeing,
    words,
)
from tests.compute.vision.tiny import VOCAB
from tests.sweeps import sweep

LIMITS = SchedulerLimits(max_batch_size=4, prefill_chunk_tokens=16, max_batched_tokens=64)
LENGTHS = (2, 9, 14, 25)


def prompts(name: str) -> list[Told]:
    """Some of text, some with one image or two, some with the same one, and a lone token."""
    first, second = picture(name, 1), picture(name, 2, LARGE)
    return [
        Told(name).then(words("a", 4), first, words("b", 6)),
        Told(name).then(words("c", 21)),
        Told(name).then(words("d", 3), second, words("e", 2), first, words("f", 5)),
        Told(name).then(words("g", 1)),
        Told(name).then(first, words("h", 1)),
        Told(name).then([5, 6, 7, 8] * 6),
        Told(name).then(words("a", 4), first, words("i", 12)),
        Told(name).then([*words("j", 2), 5, 6, 7], second, [5, 6, 7, 8, 9] * 3),
    ]


@pytest.mark.parametrize(("name", "size"), sweep(FAMILIES, [4, None]))
def test_rows_that_join_and_leave_answer_as_if_alone(name: str, size: int | None) -> None:
    check_crowd(seeing(name), name, size)


@pytest.mark.parametrize("name", ["qwen3_vl", "gemma3"])
def test_so_they_do_beside_a_draft_model_which_sees_nothing(name: str) -> None:
    """It drafts for the rows of text. Its vocabulary ends before the ids of images, as any does."""
    loaded = seeing(name)
    drafter = replace(load_with_vision(name), vision=None)
    drive = check_crowd(paired(loaded, drafter), name, 4, replace(LIMITS, speculation="draft"))
    assert drive.instance.speculation is not None
    counts = drive.instance.speculation.counts
    assert counts.drafted[Method.DRAFT] > 20


def check_crowd(
    loaded: LoadedModel, name: str, size: int | None, limits: SchedulerLimits = LIMITS
) -> Drive:
    drive, rng, wanted = Drive(loaded, limits, size), random.Random(name), dict[str, Told]()
    lengths = dict[str, int]()
    for number, told in enumerate(3 * prompts(name)):
        key = f"r{number}"
        wanted[key], lengths[key] = told, rng.choice(LENGTHS)
        drive.add(key, told.tokens, sampling(lengths[key]), images=told.images)
        for _ in range(rng.choice([0, 1, 3])):
            drive.step()
        queues = drive.instance.scheduler.queues
        if number % 5 == 3 and queues.running:
            queues.preempt(rng.choice(list(queues.running)))
        if number % 7 == 6:
            gone = f"r{number - 2}"
            drive.cancel(gone)
            wanted.pop(gone)
        if number == 13:
            drive.lose()
    drive.finish()
    assert drive.runner.idle
    for key, told in wanted.items():
        expected = answer(loaded, told, lengths[key])
        assert drive.answers[f"{key}/0"] == expected, (key, told.tokens)
    return drive


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_with_images_verify_drafts_beside_rows_of_text(name: str) -> None:
    """Drafts from the text, of which some are right and some are wrong."""
    loaded, few = seeing(name), (5, 6, 7)
    drive, wanted = Drive(loaded, LIMITS, 4), dict[str, Told]()
    for number in range(4):
        told = Told(name).then(words(number, 4), few * 3)
        wanted[f"text {number}"] = told
        wanted[f"shown {number}"] = told.then(picture(name, number), few * 2)
    bias = tuple((token, 100.0) for token in few)
    for key, told in wanted.items():
        drive.add(key, told.tokens, sampling(30, logit_bias=bias), images=told.images)
        drive.step()
    drive.finish()
    for key, told in wanted.items():
        assert drive.answers[f"{key}/0"] == answer(loaded, told, 30, only=few), key
    assert drive.instance.speculation is not None
    counts = drive.instance.speculation.counts
    assert counts.drafted[Method.NGRAM] > counts.accepted[Method.NGRAM] > 10


@pytest.mark.parametrize("name", ["qwen3_vl", "qwen3_5"])
def test_choices_of_one_prompt_share_its_images(name: str) -> None:
    loaded = load_with_vision(name)
    told = prompts(name)[2]
    drive = Drive(loaded, LIMITS, 4)
    drive.add("x", told.tokens, sampling(9), images=told.images, n=3)
    drive.finish()
    expected = answer(loaded, told, 9)
    assert [drive.answers[f"x/{choice}"] for choice in range(3)] == [expected] * 3
    assert loaded.vision is not None and loaded.vision.runs == 2


@pytest.mark.parametrize("name", ["qwen3_vl", "idefics3"])
def test_a_penalty_for_repetition_leaves_tokens_of_images_out(name: str) -> None:
    loaded, told = seeing(name), prompts(name)[2]
    drive = Drive(loaded, LIMITS, 4)
    penalised = SamplingParams(max_tokens=20, temperature=0, repetition_penalty=1.5)
    drive.add("x", told.tokens, penalised, images=told.images)
    drive.finish()
    found = drive.answers["x/0"]
    assert found == answer(loaded, told, 20, repetition=1.5) != answer(loaded, told, 20)
    assert max(found) < VOCAB


@pytest.mark.parametrize("name", ["qwen3_vl", "qwen3_5"])
def test_a_suspect_is_probed_with_its_images(name: str) -> None:
    """After a step that failed each row is computed alone, to find the one that fails."""
    loaded, told = load_with_vision(name), prompts(name)[2]
    drive = Drive(loaded, LIMITS, 4)
    drive.add("x", told.tokens, sampling(9), images=told.images)
    for _ in range(3):
        drive.step()
    [suspect] = drive.instance.restart()
    drive.pipeline.clear()
    assert loaded.vision is not None and loaded.vision.runs == 2
    loaded.vision.let_go(loaded.vision.nbytes)
    drive.runner.probe(suspect.join(), suspect.request.images)
    assert loaded.vision.runs == 4
    drive.finish()
    assert drive.answers["x/0"] == answer(loaded, told, 9)
