"""Prepared pixels are those of transformers, and their digests say what they were made of."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.errors import BadRequest, LoadFailed
from omlx_server.images import prepare
from omlx_server.images.bitmap import Bitmap
from omlx_server.images.prepare.families import make_preparer
from omlx_server.images.prepare.prepared import LOW_TOKENS, Detail, Prepared, run_digest
from tests.images.files import noise
from tests.images.references import CONFIGS, reference

SIZES = [(1, 1), (28, 28), (61, 47), (47, 61), (333, 40), (40, 333), (200, 300), (500, 3), (3, 500)]
LONG = "smolvlm-long"
TILED = ("idefics3", "smolvlm", "smolvlm-odd", "smolvlm-whole", LONG)
QWEN = ("qwen2-vl", "qwen3-vl", "qwen-defaults")
# Its patches fill all tiles.
MODEL = {"vision_config": {"patch_size": 2, "image_size": 52}}


def prepared(name: str, bitmap: Bitmap, **changed: Any) -> Prepared:
    return make_preparer({**CONFIGS[name][1], **changed}, MODEL).prepare(bitmap)


def check(name: str, height: int, width: int) -> None:
    """Compare what is prepared of an image of that size, and what was planned, with the
    reference."""
    bitmap = Bitmap(noise(height, width))
    expected, made = reference(name, bitmap), prepared(name, bitmap)
    pixels = expected["pixel_values"]
    pixels = pixels[0] if name in TILED else pixels
    if name not in QWEN:
        pixels = np.moveaxis(pixels, 1, -1)
    assert made.pixels.dtype == np.float32
    assert made.pixels.shape == pixels.shape
    assert np.abs(made.pixels - pixels).max() <= 1e-4
    if name in QWEN:
        assert made.plan.grid == tuple(expected["image_grid_thw"][0])
        assert made.plan.tokens == len(pixels) // 4
    if name in TILED:
        assert made.plan.tiles == (expected["rows"][0][0], expected["cols"][0][0])
        assert made.plan.runs == len(pixels)
        assert made.plan.tokens == 169 * len(pixels)
        assert expected["pixel_attention_mask"].all()
    assert make_preparer(CONFIGS[name][1], MODEL).plan(height, width) == made.plan
    assert made.plan.shape == made.pixels.shape
    assert made.plan.pixel_bytes == made.pixels.nbytes


@pytest.mark.parametrize("name", CONFIGS)
def test_pixels_are_those_of_transformers(name: str) -> None:
    for height, width in SIZES if name != LONG else [(3, 50), (50, 3)]:
        check(name, height, width)


@pytest.mark.parametrize("name", ["qwen2-vl", "idefics3"])
def test_large_images_are_shrunk_as_transformers_does(name: str) -> None:
    for height, width in ((900, 1200), (1200, 901)):
        check(name, height, width)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["smolvlm", "smolvlm-odd"]), st.integers(1, 150), st.integers(1, 150))
def test_any_size_is_tiled_as_transformers_does(name: str, height: int, width: int) -> None:
    check(name, height, width)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300))
def test_any_size_is_fitted_as_transformers_does(height: int, width: int) -> None:
    if max(height, width) <= 200 * min(height, width):
        check("qwen2-vl", height, width)


@pytest.mark.parametrize(("height", "width"), [(402, 2), (1, 201)])
def test_a_image_too_narrow_for_qwen_is_refused(height: int, width: int) -> None:
    bitmap = Bitmap(noise(height, width))
    with pytest.raises(ValueError, match="aspect ratio"):
        reference("qwen2-vl", bitmap)
    with pytest.raises(BadRequest, match="too narrow"):
        prepared("qwen2-vl", bitmap)


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("qwen2-vl", {"min_pixels": 40_000}),
    ("qwen2-vl", {"max_pixels": 40_000}),
    ("qwen2-vl", {"patch_size": 16}),
    ("qwen2-vl", {"temporal_patch_size": 1}),
    ("qwen2-vl", {"merge_size": 1}),
    ("qwen2-vl", {"resample": 2}),
    ("qwen2-vl", {"image_mean": [0.5, 0.4578275, 0.40821073]}),
    ("qwen2-vl", {"image_std": [0.26862954, 0.26130258, 0.3]}),
    ("qwen2-vl", {"rescale_factor": 0.004}),
    ("qwen2-vl", {"do_rescale": False}),
    ("qwen2-vl", {"do_normalize": False}),
    ("gemma3", {"size": {"height": 896, "width": 448}}),
    ("gemma3", {"resample": 3}),
    ("smolvlm", {"size": {"longest_edge": 64}}),
    ("smolvlm", {"max_image_size": {"longest_edge": 64}}),
    ("smolvlm", {"do_image_splitting": False}),
    ("smolvlm", {"resample": 3}),
]


@pytest.mark.parametrize(("name", "changed"), CHANGES)
def test_each_parameter_changes_the_digest(name: str, changed: dict[str, Any]) -> None:
    bitmap = Bitmap(noise(60, 90))
    assert prepared(name, bitmap).digest != prepared(name, bitmap, **changed).digest


@pytest.mark.parametrize("name", CONFIGS)
def test_a_digest_is_that_of_the_image_and_the_preparation(name: str) -> None:
    one, other = Bitmap(noise(40, 50)), Bitmap(noise(40, 50, seed=1))
    preparer = make_preparer(CONFIGS[name][1], MODEL)
    again = make_preparer({**CONFIGS[name][1], "do_convert_rgb": True, "_comment": "more"}, MODEL)
    digest = preparer.digest(one.digest)
    assert digest == preparer.prepare(one).digest == again.digest(one.digest)
    assert digest != preparer.digest(other.digest)
    assert len(digest) == 32


def test_another_pillow_makes_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    preparer = make_preparer(CONFIGS["qwen2-vl"][1], MODEL)
    before = preparer.digest(b"image")
    monkeypatch.setattr(prepare.prepared, "resizer_version", lambda: "0.1")
    assert preparer.digest(b"image") != before


def test_families_differ_in_their_digests() -> None:
    bitmap = Bitmap(noise(40, 50))
    preparers = [make_preparer(config, {}) for _, config in CONFIGS.values()]
    assert len({preparer.digest(bitmap.digest) for preparer in preparers}) == len(CONFIGS)


MODELS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"model_type": "qwen3_vl_moe"}, "qwen"),
    ({"image_processor_type": "Qwen2_5_VLImageProcessor"}, {}, "qwen"),
    ({"image_processor_type": "Gemma3ImageProcessorPil"}, {"model_type": "new"}, "gemma3"),
    ({"processor_class": "Idefics3Processor"}, {}, "idefics3"),
    ({"image_processor": {"image_processor_type": "SmolVLMImageProcessorFast"}}, {}, "idefics3"),
]


@pytest.mark.parametrize(("config", "model", "family"), MODELS)
def test_a_family_is_found_by_each_name(
    config: dict[str, Any], model: dict[str, Any], family: str
) -> None:
    assert make_preparer(config, model).family == family


@pytest.mark.parametrize(
    ("config", "model", "named"),
    [
        ({"image_processor_type": "PixtralImageProcessor"}, {}, "PixtralImageProcessor"),
        ({"image_processor_type": "PixtralImageProcessor"}, {"model_type": "gemma3"}, "Pixtral"),
        ({"processor_class": "KimiVLProcessor"}, {}, "KimiVLProcessor"),
        ({}, {"model_type": "llava"}, "llava"),
        ({}, {}, "no field says"),
        ({"image_processor_type": 3}, {"model_type": ["gemma3"]}, "no field says"),
    ],
)
def test_an_unknown_family_is_named(
    config: dict[str, Any], model: dict[str, Any], named: str
) -> None:
    with pytest.raises(LoadFailed, match=named):
        make_preparer(config, model)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("qwen2-vl", {"patch_size": 0}, "patch_size"),
    ("qwen2-vl", {"patch_size": "14"}, "patch_size"),
    ("qwen2-vl", {"merge_size": 1.5}, "merge_size"),
    ("qwen2-vl", {"do_resize": False}, "do_resize"),
    ("qwen2-vl", {"resample": 9}, "resample"),
    ("qwen2-vl", {"size": 448, "min_pixels": None}, "size"),
    ("qwen2-vl", {"image_mean": [0.5, 0.5]}, "image_mean"),
    ("qwen2-vl", {"image_mean": "grey"}, "image_mean"),
    ("qwen2-vl", {"image_std": [0.5, 0.0, 0.5]}, "image_std"),
    ("qwen2-vl", {"rescale_factor": "1/255"}, "rescale_factor"),
    ("gemma3", {"do_pan_and_scan": True}, "do_pan_and_scan"),
    ("gemma3", {"size": {"height": -1}}, "height"),
    ("smolvlm", {"max_image_size": 364}, "max_image_size"),
]


@pytest.mark.parametrize(("name", "changed", "field"), WRONG)
def test_a_wrong_field_is_named(name: str, changed: dict[str, Any], field: str) -> None:
    with pytest.raises(LoadFailed, match=f"with {field} "):
        make_preparer({**CONFIGS[name][1], **changed}, {})


def test_tokens_are_those_of_the_model() -> None:
    gemma = {"model_type": "gemma3", "mm_tokens_per_image": 64}
    assert make_preparer({}, gemma).plan(9, 9).tokens == 64
    vision = {"image_size": 512, "patch_size": 16}
    smol = {"model_type": "smolvlm", "scale_factor": 4, "vision_config": vision}
    whole = make_preparer({"do_image_splitting": False}, smol)
    assert whole.plan(9, 9).tokens == 64
    split = {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}
    assert make_preparer(split, smol).plan(100, 200).tokens == 64 * 9


def test_prepared_rows_of_qwen_keep_patches_of_one_token_together() -> None:
    """Each patch has a colour of its own, and the order of colours is that of the merged grid."""
    pixels = np.zeros((4 * 14, 6 * 14, 3), dtype=np.uint8)
    for row in range(4):
        for column in range(6):
            pixels[row * 14 : row * 14 + 14, column * 14 : column * 14 + 14] = row * 6 + column
    plain = {"do_rescale": False, "do_normalize": False}
    made = prepared("qwen2-vl", Bitmap(pixels), **plain, min_pixels=14)
    assert made.pixels[:, 0].tolist()[:12] == [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]


def test_an_image_takes_no_more_tokens_than_its_detail_allows() -> None:
    config = CONFIGS["qwen3-vl"][1]
    full, most = make_preparer(config, {}), make_preparer(config, {}, Detail(400))
    low, lower = (make_preparer(config, {}, Detail(n, low=True)) for n in (400, 100))
    large = 2000, 1500
    assert full.plan(*large).tokens > 400 >= most.plan(*large).tokens > LOW_TOKENS
    assert LOW_TOKENS >= low.plan(*large).tokens > 100 >= lower.plan(*large).tokens
    bitmap = Bitmap(noise(700, 900))
    for preparer in (full, most, low, lower):
        assert preparer.prepare(bitmap).pixels.shape == preparer.plan(700, 900).shape
    assert len({one.digest(bitmap.digest) for one in (full, most, low, lower)}) == 4
    assert make_preparer(config, {}, Detail(10**6)).digest(b"") == full.digest(b"")


def test_the_least_of_an_image_is_no_more_than_its_most() -> None:
    """Qwen3-VL asks for 64 tokens at least."""
    assert make_preparer(CONFIGS["qwen3-vl"][1], {}, Detail(16)).plan(640, 640).tokens == 16


def test_low_detail_shows_an_image_whole() -> None:
    config = CONFIGS["smolvlm"][1]
    full, low = make_preparer(config, {}), make_preparer(config, {}, Detail(low=True))
    assert (full.plan(90, 120).runs, low.plan(90, 120).runs) == (13, 1)
    whole, made = low.prepare(Bitmap(noise(90, 120))), full.prepare(Bitmap(noise(90, 120)))
    assert whole.pixels.shape == made.of_run(12).shape
    assert whole.digest != made.digest


def test_families_of_one_size_have_it_at_each_detail() -> None:
    config, bitmap = CONFIGS["gemma3"][1], Bitmap(noise(90, 120))
    for detail in (Detail(16), Detail(low=True)):
        made = make_preparer(config, {}, detail)
        assert made.digest(bitmap.digest) == make_preparer(config, {}).digest(bitmap.digest)
        assert made.plan(90, 120).tokens == 256


def test_each_tile_is_a_run_of_its_own() -> None:
    made = prepared("smolvlm", Bitmap(noise(90, 120)))
    runs = [made.of_run(number) for number in range(made.plan.runs)]
    assert np.array_equal(np.concatenate(runs), made.pixels)
    digests = {run_digest(made.digest, made.plan, number) for number in range(made.plan.runs)}
    assert len(digests) == made.plan.runs == 13
    assert made.plan.run_tokens == 169
    one = prepared("qwen2-vl", Bitmap(noise(90, 120)))
    assert one.plan.runs == 1
    assert run_digest(one.digest, one.plan, 0) == one.digest
    assert one.of_run(0) is one.pixels


@pytest.mark.parametrize(
    ("name", "grid", "advance"),
    [("qwen2-vl", (1, 8, 10), 5), ("gemma3", (1, 448, 448), 256), ("smolvlm", (1, 16, 16), 169)],
)
def test_a_plan_says_how_a_run_lies_in_patches_and_in_the_prompt(
    name: str, grid: tuple[int, int, int], advance: int
) -> None:
    plan = make_preparer(CONFIGS[name][1], MODEL).plan(112, 140)
    assert (plan.grid, plan.advance) == (grid, advance)
    assert make_preparer(CONFIGS[name][1], MODEL).whole == (name == "gemma3")


@pytest.mark.parametrize("name", ["smolvlm", "gemma3-odd"])
def test_pixels_that_fill_no_patch_are_left_out(name: str) -> None:
    """SmolVLM has tiles of 384 pixels and patches of 14; a convolution passes over the rest."""
    bitmap = Bitmap(noise(60, 90))
    odd = make_preparer(CONFIGS[name][1], {"vision_config": {"patch_size": 5}})
    made, whole = odd.prepare(bitmap), prepared(name, bitmap)
    _, height, width, _ = made.pixels.shape
    assert (height, width) == tuple(edge // 5 * 5 for edge in whole.pixels.shape[1:3])
    assert made.plan.grid == (1, height // 5, width // 5)
    assert np.array_equal(made.pixels, whole.pixels[:, :height, :width])
    assert made.digest != whole.digest
