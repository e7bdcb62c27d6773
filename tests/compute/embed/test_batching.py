"""An input's result does not hang on what is computed beside it, nor on how work is sliced."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.compute.attention.all_to_all import attend
from omlx_server.compute.embed.backbone_encoder import PassSize
from omlx_server.compute.embed.batch import BatchResult, BatchWork
from omlx_server.compute.embed.embedder import CrossEncoder
from omlx_server.compute.hardware import device_policy
from omlx_server.core.encoded import TokenizedText
from omlx_server.errors import BadRequest
from tests.compute.embed import tiny
from tests.compute.embed.loading import collect, load_cross_encoder, load_embedder

CASES = ["BertModel", "XLMRobertaModel", "Qwen3Model", "BertForSequenceClassification"]
Run = Callable[[list[TokenizedText], int], BatchWork]

IDS = st.lists(st.integers(2, 39), min_size=1, max_size=30)
INPUTS = st.lists(st.tuples(IDS, st.integers(0, 30)), min_size=1, max_size=7)


@pytest.fixture(scope="module", params=CASES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tiny.save(tmp_path_factory.mktemp("tiny"), request.param)
    reranks = "Classification" in request.param
    model = load_cross_encoder(directory) if reranks else load_embedder(directory)

    def run_with(inputs: list[TokenizedText], tokens: int) -> BatchWork:
        model.pass_size = PassSize(tokens, tokens)
        return model.score(inputs) if isinstance(model, CrossEncoder) else model.embed(inputs)

    return run_with


def encoded(ids: list[int], first: int) -> TokenizedText:
    return TokenizedText(tuple(ids), tuple(int(place >= first) for place in range(len(ids))))


@settings(derandomize=True, max_examples=25, deadline=None)
@given(INPUTS, st.integers(1, 120))
def test_a_batch_gives_what_single_inputs_give(
    run: Run, drawn: list[tuple[list[int], int]], slice_tokens: int
) -> None:
    inputs = [encoded(*one) for one in drawn]
    together = collect(run(inputs, slice_tokens), len(inputs))
    for one, value in zip(inputs, together, strict=True):
        (alone,) = collect(run([one], 1000), 1)
        assert np.abs(np.array(value) - np.array(alone)).max() < 1e-5


def test_a_long_input_takes_many_turns_and_short_ones_few(run: Run) -> None:
    long = [encoded([*range(2, 32)], 10)]
    assert len(list(run(long, 30))) == 1
    turns = list(run(long, 15))
    assert [isinstance(turn, BatchResult) for turn in turns] == [False, True]
    short = [encoded([5, 6, 7], 1)] * 20
    assert len(list(run(short, 60))) == 1
    assert len(list(run(short, 15))) == 4


def test_nothing_is_computed_before_the_first_turn_but_mistakes_are_said(run: Run) -> None:
    for bad in (
        TokenizedText(()),
        TokenizedText((2, 40)),
        TokenizedText((-1, 3)),
        TokenizedText((2,) * 65),
    ):
        with pytest.raises(BadRequest, match="input 1"):
            run([TokenizedText((2, 3)), bad], 100)
    assert list(run([], 100)) == []


def test_dimensions_are_the_first_ones_normalised(tmp_path: Path) -> None:
    embedder = load_embedder(tiny.save(tmp_path, "BertModel"))
    inputs = tiny.inputs_of("BertModel")
    (whole, short) = (
        np.array(mx.stack(collect(embedder.embed(inputs, dimensions=count), len(inputs))))
        for count in (None, 5)
    )
    assert whole.shape == (4, 16)
    cut = whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True)
    assert np.abs(short - cut).max() < 1e-6
    for count in (0, 17):
        with pytest.raises(BadRequest, match="1 to 16") as caught:
            embedder.embed(inputs, dimensions=count)
        assert caught.value.param == "dimensions"


def test_a_model_with_one_type_does_not_mind_which_text_a_token_is_of(tmp_path: Path) -> None:
    for case, alike in (("XLMRobertaForSequenceClassification", True), (CASES[-1], False)):
        model = load_cross_encoder(tiny.save(tmp_path / case, case))
        one, two = collect(model.score([encoded([2, 9, 3], 3), encoded([2, 9, 3], 1)]), 2)
        assert (np.abs(np.array(one) - np.array(two)).max() < 1e-6) == alike


def test_a_large_model_does_less_in_one_turn() -> None:
    minilm, xlm_roberta_large, qwen3_8b = (
        PassSize.of(6, 384),
        PassSize.of(24, 1024),
        PassSize.of(36, 4096),
    )
    assert minilm.slice_tokens == minilm.group_tokens
    assert 64 <= qwen3_8b.slice_tokens <= xlm_roberta_large.slice_tokens < minilm.slice_tokens


def test_attention_in_pieces_is_the_same(tmp_path: Path) -> None:
    q, k, v = (mx.random.normal((2, 3, 17, 8), key=mx.random.key(i)) for i in range(3))
    mask = mx.where(mx.arange(17) < mx.array([[17], [9]]), 0.0, -mx.inf)[:, None, None, :]
    whole = attend(q, k, v, mask)
    for most in (1, 2 * 3 * 17 * 5, 2 * 3 * 17 * 16):
        assert mx.allclose(attend(q, k, v, mask, most), whole, atol=1e-6).item()


def test_heads_are_padded_to_a_width_for_which_attention_is_fused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    q, k, v = (mx.random.normal((2, 3, 17, 72), key=mx.random.key(i)) for i in range(3))
    seen = (mx.arange(17) < mx.array([[17], [9]]))[:, None, None, :]
    whole, widths = attend(q, k, v, seen), list[int]()
    own = mx.fast.scaled_dot_product_attention

    def noted(q: mx.array, *rest: mx.array, **options: Any) -> mx.array:
        widths.append(q.shape[-1])
        return own(q, *rest, **options)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", noted)
    monkeypatch.setattr(device_policy, "current", lambda: device_policy.GPU)
    assert mx.allclose(attend(q, k, v, seen, 1), whole, atol=1e-5).item()
    assert widths == [80]
