"""Images in a language model of mlx-lm, on our caches."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.model.loader import load
from omlx_server.compute.vision.image_forward import FeatureSpan, ImageForward
from omlx_server.compute.vision.image_mask import with_image_mask
from omlx_server.compute.vision.positions import axis_positions
from omlx_server.compute.vision.rope import AxisPositions, at_positions, shifted_by
from omlx_server.compute.vision.towers.features import Features
from tests.arrays import plain
from tests.compute.vision.recorded import CLOSE, apart, arrays, save, tensors
from tests.compute.vision.seeing import MODELS, PADDED, THREE_AXES, in_chunks, loaded, part_of
from tests.compute.vision.tiny import GRIDS, IMAGE_ID

ROWS = range(len(GRIDS))
TEXT = [17, 4, 33, 90, 12, 61, 7, 28, 55]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("number", ROWS)
def test_logits_of_a_prompt_with_images_equal_the_reference(name: str, number: int) -> None:
    model = loaded(name)
    logits, _ = in_chunks(model, model.prompt(number), ())
    assert apart(logits, arrays(name)[f"logits_{number}"]) < CLOSE


@pytest.mark.parametrize("name", THREE_AXES)
def test_a_chunk_may_end_anywhere(name: str) -> None:
    model = loaded(name)
    prompt = model.prompt(1)
    whole, _ = in_chunks(model, prompt, ())  # which equals the reference
    for border in range(1, len(prompt.ids)):
        logits, _ = in_chunks(model, prompt, (border,))
        assert apart(logits, np.array(whole)) < 2 * CLOSE, border  # both are rounded


def test_a_chunk_may_end_anywhere_but_in_an_image_of_gemma() -> None:
    model, expected = loaded("gemma3"), arrays("gemma3")["logits_1"]
    prompt, inside = model.prompt(1), 0
    for border in range(1, len(prompt.ids)):
        logits, _ = in_chunks(model, prompt, (border,))
        if prompt.ids[border] == prompt.ids[border - 1] == IMAGE_ID:
            inside += 1
            assert apart(logits, expected) > 100 * CLOSE, border
        else:
            assert apart(logits, expected) < CLOSE, border
    assert inside == 2 * 15


@pytest.mark.parametrize("name", THREE_AXES)
def test_what_stands_in_the_place_of_an_image_makes_no_difference(name: str) -> None:
    """The ids there are those of a digest, which no vocabulary has."""
    model = loaded(name)
    prompt = model.prompt(1)
    expected, _ = in_chunks(model, prompt, ())
    prompt.ids[:] = [2**31 - 1 if id == IMAGE_ID else id for id in prompt.ids]
    found, _ = in_chunks(model, prompt, ())
    assert mx.array_equal(found, expected).item()


@pytest.mark.parametrize("name", THREE_AXES)
def test_answers_are_decoded_at_positions_behind_the_images(name: str) -> None:
    model, expected = loaded(name), arrays(name)["logits_1"]
    prompt, caches = model.prompt(1), model.caches()
    prefilled = len(prompt.ids) - 5
    model.feed(prompt, 0, prefilled, caches)
    for place in range(prefilled, len(prompt.ids)):
        seeing = ImageForward(model.model, shifted_by([prompt.delta]))
        logits = seeing(mx.array([[prompt.ids[place]]]), caches)
        assert apart(logits[0, 0], expected[place]) < CLOSE


@pytest.mark.parametrize("name", PADDED)
def test_rows_with_images_and_without_share_forwards(name: str) -> None:
    """A padded prefill of three rows, then decodes of them all."""
    model = loaded(name)
    prompts = [model.prompt(0), model.prompt(1)]
    ids = [prompts[0].ids, TEXT, prompts[1].ids]
    places = [prompts[0].places, [], prompts[1].places]
    alone = [*(in_chunks(model, prompt, ())[1] for prompt in prompts), model.caches()]
    model.model(mx.array([TEXT]), cache=alone[2])
    width = max(map(len, ids))
    positions = AxisPositions([axis_positions(0, width, own) for own in places])
    whole = len(ids[0]), len(ids[2])
    entries = [*part_of(prompts[0], 0, 0, whole[0]), *part_of(prompts[1], 2, 0, whole[1])]
    batch = cache_ops.merge([model.caches() for _ in ids])
    seeing = ImageForward(model.model, at_positions(positions), entries)
    logits = cache_ops.forward_padded(
        seeing, cache_ops.padded(ids), [len(row) for row in ids], batch
    )
    for row, number in ((0, 0), (2, 1)):
        expected = arrays(name)[f"logits_{number}"]
        assert apart(logits[row, : len(expected)], expected) < CLOSE
    deltas = [prompts[0].delta, 0, prompts[1].delta]
    tokens = [11, 22, 33]
    for _ in range(3):
        together = ImageForward(model.model, shifted_by(deltas))(mx.array(tokens)[:, None], batch)
        for row, caches in ((0, alone[0]), (1, alone[2]), (2, alone[1])):
            solo = ImageForward(model.model, shifted_by([deltas[row]]))(
                mx.array([[tokens[row]]]), caches
            )
            assert apart(together[row], np.array(solo[0])) < CLOSE
        tokens = plain(together[:, -1].argmax(axis=-1))


@pytest.mark.parametrize("name", THREE_AXES)
def test_text_is_computed_as_before_bit_for_bit(name: str) -> None:
    """Also in a forward with positions, and with an image behind it."""
    model = loaded(name)
    prompt = model.prompt(0)
    text = prompt.ids[: prompt.starts[0]]
    plain, seeing = model.caches(), model.caches()
    expected = model.model(mx.array([text]), cache=plain)[0]
    found = model.feed(prompt, 0, len(text), seeing)
    assert mx.array_equal(found, expected).item()
    for first, second in zip(plain, seeing, strict=True):
        if isinstance(first, PackedKVCache):
            assert all(map(mx.array_equal, first.row(0), second.row(0)))


def test_deepstack_of_zeros_leaves_the_model_as_it_is() -> None:
    model = loaded("qwen3_vl").model
    tokens = mx.array([TEXT])
    embedded = model.language_model.model.embed_tokens(tokens)[0]
    nothing = Features(embedded[2:5], mx.zeros((2, 3, embedded.shape[-1])))
    for head in (1, 2):
        caches = [cache_ops.new_caches(model) for _ in range(2)]
        expected = model(tokens, cache=caches[0])
        found = ImageForward(model, shifted_by([0]), [FeatureSpan(0, 2, nothing)] * head)(
            tokens, caches[1]
        )
        assert mx.array_equal(found, expected).item()


@pytest.mark.parametrize("name", THREE_AXES)
def test_a_model_keeps_nothing_of_a_request(name: str) -> None:
    """Chunks of two prompts in turns give what each gives alone."""
    model, cut = loaded(name), 20
    prompts, caches = [model.prompt(0), model.prompt(1)], [model.caches(), model.caches()]
    for start, stop in ((0, cut), (cut, None)):
        for number in ROWS:
            own = prompts[number]
            end = len(own.ids) if stop is None else stop
            logits = model.feed(own, start, end, caches[number])
            assert apart(logits, arrays(name)[f"logits_{number}"][start:end]) < CLOSE


def test_rows_behind_recurrent_states_decode_together() -> None:
    model = loaded("qwen3_5")
    prompts = [model.prompt(0), model.prompt(1)]
    deltas, tokens = [prompt.delta for prompt in prompts], mx.array([[11], [22]])
    solo = [in_chunks(model, prompt, ())[1] for prompt in prompts]
    batch = cache_ops.merge([in_chunks(model, prompt, ())[1] for prompt in prompts])
    for _ in range(2):
        together = ImageForward(model.model, shifted_by(deltas))(tokens, batch)
        for row, caches in enumerate(solo):
            alone = ImageForward(model.model, shifted_by([deltas[row]]))(
                tokens[row : row + 1], caches
            )
            assert apart(together[row], np.array(alone[0])) < CLOSE


@pytest.mark.parametrize("name", THREE_AXES)
def test_text_behind_an_image_is_the_same_in_both_views(name: str) -> None:
    """A chunk of text may be alone, or beside a row with an image, which needs three axes."""
    model = loaded(name)
    prompt, start = model.prompt(0), model.prompt(0).places[0].stop
    caches = [model.caches() for _ in range(2)]
    for own in caches:
        model.feed(prompt, 0, start, own)
    by_axes = model.feed(prompt, start, len(prompt.ids), caches[0])
    seeing = ImageForward(model.model, shifted_by([prompt.delta]))
    by_delta = seeing(mx.array([prompt.ids[start:]]), caches[1])[0]
    assert mx.array_equal(by_axes, by_delta).item()


def test_our_caches_are_below_the_views() -> None:
    model = loaded("qwen3_vl")
    caches = model.caches()
    assert {type(cache) for cache in caches} == {PackedKVCache}
    [first, *_] = shifted_by([3])(caches)
    assert first.offset == 3 and first.scheme is caches[0].scheme
    assert shifted_by([0])(caches) is caches


def test_images_of_gemma_see_themselves_and_what_is_before_them() -> None:
    model = loaded("gemma3")
    caches = model.caches()
    model.model(mx.array([TEXT]), cache=caches)
    for cache in with_image_mask(6, [(1, 3), (3, 5)])(caches):
        mask = np.array(cache.make_mask(6, window_size=None))
        assert mask[:, : len(TEXT)].all()
        seen = mask[:, len(TEXT) :].astype(int).tolist()
        assert seen == [
            [1, 0, 0, 0, 0, 0],
            [1, 1, 1, 0, 0, 0],
            [1, 1, 1, 0, 0, 0],
            [1, 1, 1, 1, 1, 0],
            [1, 1, 1, 1, 1, 0],
            [1, 1, 1, 1, 1, 1],
        ]


@pytest.mark.parametrize("start", ["language_model.", "language_model.model."])
def test_the_language_model_of_idefics3_is_found_in_conversions(start: str, tmp_path: Path) -> None:
    weights = tensors("idefics3")
    head = weights.pop("lm_head.weight")
    renamed = {key.replace("model.text_model.", start): array for key, array in weights.items()}
    path = save("idefics3", tmp_path, {**renamed, "language_model.lm_head.weight": head})
    expected = loaded("idefics3").model(mx.array([TEXT]))
    assert mx.array_equal(load(path).model(mx.array([TEXT])), expected).item()


def test_the_embedding_of_idefics3_is_its_head_where_it_has_none(tmp_path: Path) -> None:
    weights = tensors("idefics3")
    del weights["lm_head.weight"]
    tied = load(save("idefics3", tmp_path, weights)).model
    weights["lm_head.weight"] = weights["model.text_model.embed_tokens.weight"]
    (other := tmp_path / "other").mkdir()
    own = load(save("idefics3", other, weights)).model
    assert mx.array_equal(tied(mx.array([TEXT])), own(mx.array([TEXT]))).item()
