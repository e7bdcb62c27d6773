"""A mixture whose experts stay on the disk, on a real server."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from omlx_server.models.layout import expert_sizes
from tests.api.harness import ServerProcess, assert_envelope, cached, samples, serving, text_of
from tests.api.small_models import ask, save, sets, told

SIZES = {
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_experts": 48,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 160,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
LIMIT = 12_000_000
PROMPTS = [f"Tell me of the {word} and the sea." for word in ("moon", "wind", "old ship", "sun")]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mixture")
    for name in ("disk", "whole"):
        save(root / name, "qwen3_moe", **SIZES)
    return root


@pytest.fixture(scope="module")
def whole(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """All is in memory."""
    with serving("whole", tmp_path_factory.mktemp("whole"), *sets(directory)) as server:
        yield server


@pytest.fixture(scope="module")
def short(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The model is three times as large as the memory, so its experts stay on the disk."""
    sizes = [f"memory.limit={LIMIT}B", "memory.activation_reserve=1MB"]
    with serving("disk", tmp_path_factory.mktemp("short"), *sets(directory), *sizes) as server:
        yield server


def test_a_model_of_three_times_the_memory_answers_as_it_does_in_memory(
    directory: Path, whole: ServerProcess, short: ServerProcess
) -> None:
    weights = (directory / "disk" / "model.safetensors").stat().st_size
    assert weights > 3 * LIMIT
    expected = [text_of(whole.chat(prompt, max_tokens=12)) for prompt in PROMPTS]
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda prompt: short.chat(prompt, max_tokens=12), PROMPTS))
    assert [text_of(answer) for answer in answers] == expected
    again = short.chat(PROMPTS[0], max_tokens=12)
    assert text_of(again) == expected[0]
    assert cached(again) > 0


def test_it_says_so(directory: Path, short: ServerProcess) -> None:
    sizes, model = expert_sizes(directory / "disk"), told(short)["disk"]
    assert sizes is not None
    slots = int(model["experts"].removesuffix(f" of {sizes.experts}"))
    rest = model["disk_bytes"] - sizes.nbytes * sizes.experts
    assert model["weight_bytes"] <= rest + slots * sizes.nbytes < 0.75 * LIMIT
    short.chat(PROMPTS[1], max_tokens=4)
    metrics = samples(short.http.get(f"{short.url}/metrics").text)
    experts = {
        kind: metrics[f'omlx_experts_total{{kind="{kind}"}}'] for kind in ("used", "missing")
    }
    assert experts["used"] > experts["missing"] > 0
    read = metrics["omlx_experts_read_bytes_total"]
    assert read >= experts["missing"] * sizes.nbytes / SIZES["num_hidden_layers"]  # type: ignore[operator]


def test_a_file_that_is_cut_ends_requests_and_not_the_server(
    directory: Path, short: ServerProcess
) -> None:
    file = directory / "disk" / "model.safetensors"
    expected, data = text_of(short.chat(PROMPTS[2], max_tokens=8)), file.read_bytes()
    file.write_bytes(data[:1000])
    try:
        for number in range(3):
            error = assert_envelope(ask(short, "disk", f"{number}: {PROMPTS[3]}"), 500)
            assert "experts can't be read: model.safetensors is cut" in error["message"]
    finally:
        file.write_bytes(data)
    assert text_of(short.chat(PROMPTS[2], max_tokens=8)) == expected
