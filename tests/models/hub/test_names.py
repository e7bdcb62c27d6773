"""What people paste and type, and which model of the hub it is."""

import pytest

from omlx_server.models.hub.names import (
    SHORT_NAMES,
    HubName,
    best_that_fits,
    find,
    hub_name,
    matching,
)

NAME = "mlx-community/Qwen3-0.6B-4bit"
SAME = (
    NAME,
    f"https://huggingface.co/{NAME}",
    f"http://huggingface.co/{NAME}/",
    f"HTTPS://HuggingFace.co/{NAME}?library=mlx#files",
    f"https://www.huggingface.co/{NAME}/tree/main",
    f"https://huggingface.co/{NAME}/blob/main/config.json",
    f"https://huggingface.co/{NAME}/resolve/main/model.safetensors?download=true",
    f"https://huggingface.co/{NAME}/discussions/3",
    f"huggingface.co/{NAME}",
    f"hf.co/{NAME}",
    f"https://hf.co/{NAME}",
    f"hf://{NAME}",
    f"HF://{NAME}@main",
    f" {NAME}\n",
    f"{NAME}@main",
    "qwen3-0.6b",
    "Qwen3:0.6B",
)
NONE = (
    *("", "tiny", "a/b/c", "/etc", "~", "./org/tiny", "../x", "org/", "org/name@", "org/na me"),
    *("https://huggingface.co", "https://huggingface.co/org", "huggingface.co/org"),
    *("https://huggingface.co/datasets/org/name", "https://huggingface.co/spaces/org/name"),
    *("https://example.com/org/name", "https://huggingface.co.example.com/org/name"),
    *(f"https://huggingface.co/{NAME}/tree/refs%2Fpr%2F1", "https://huggingface.co/../.."),
    *("hf://", "hf://org", "hf://datasets/org/name", "hf:org/name"),
    *("hf.co/org/name:latest", "org/name:adapter", "mlx-community/a:Q4_K_M"),
    *(
        "org/name:Q8_0:x",
        "org/name@v1:Q8_0@v1",
        "org/name:",
        "name:Q8_0",
        "@v1",
        "org/name@../x",
        "x\x00y",
    ),
)


@pytest.mark.parametrize("text", SAME)
def test_a_name_and_its_addresses_are_one_model(text: str) -> None:
    assert hub_name(text) == HubName(NAME)
    assert str(hub_name(text)) == NAME


@pytest.mark.parametrize("text", NONE)
def test_other_texts_are_no_model_of_the_hub(text: str) -> None:
    assert hub_name(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "org/name@v1.0",
        "https://huggingface.co/org/name/tree/v1.0",
        "hf.co/org/name/tree/v1.0/deep/down",
        "https://huggingface.co/org/name/commit/v1.0",
    ],
)
def test_a_revision_is_a_part_of_the_name(text: str) -> None:
    assert str(hub_name(text)) == "org/name@v1.0"


@pytest.mark.parametrize(
    "text",
    [
        "org/name:Q4_K_M",
        "org/name@main:q4_k_m",
        "hf://org/name:Q4_K_M",
        "hf.co/org/name:Q4_K_M@main",
        "https://huggingface.co/org/name/blob/main/x-Q4_K_M.gguf",
        "https://huggingface.co/org/name/resolve/main/Q4_K_M/x-00001-of-00002.gguf?download=true",
    ],
)
def test_a_tag_is_a_part_of_the_name(text: str) -> None:
    assert hub_name(text) == HubName("org/name", tag="Q4_K_M")
    assert str(hub_name(text)) == "org/name:Q4_K_M"


@pytest.mark.parametrize("text", ["org/name@v1:Q8_0", "org/name:q8_0@v1"])
def test_a_revision_may_stand_on_either_side_of_a_tag(text: str) -> None:
    assert str(hub_name(text)) == "org/name@v1:Q8_0"


def test_a_mirror_has_addresses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_name("https://mirror.example:8443/org/name") is None
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example:8443")
    assert hub_name("https://mirror.example:8443/org/name/tree/main") == HubName("org/name")
    monkeypatch.setenv("HF_ENDPOINT", "https://proxy.example/hub/")
    assert hub_name("https://proxy.example/hub/org/name/tree/main") == HubName("org/name")
    assert hub_name("https://proxy.example/org/name") is None


def test_short_names_are_plain_and_stand_for_names_of_the_hub() -> None:
    assert len({row.name for row in SHORT_NAMES}) == len(SHORT_NAMES) >= 12
    sizes = [row.disk_bytes for row in SHORT_NAMES]
    assert sizes == sorted(sizes) and sizes[0] > 1e8
    for row in SHORT_NAMES:
        assert row.name == row.name.lower() and "/" not in row.name
        assert hub_name(row.name) == hub_name(row.repo_id) == HubName(row.repo_id)
        assert find(row.name) is row and row.context >= 8192


def test_all_words_of_a_search_count() -> None:
    assert [row.name for row in matching("Qwen3 coder")] == ["qwen3-coder-30b"]
    assert "llama3.1-8b" in [row.name for row in matching("meta-llama")]
    assert matching("no such model") == []


@pytest.mark.parametrize(
    ("gigabytes", "name"),
    [
        (1, None),
        (6.4, "qwen3.5-4b"),
        (12.9, "qwen3.5-9b"),
        (25.8, "qwen3.6-35b-a3b"),
        (121, "qwen3.5-122b-a10b"),
    ],
)
def test_the_best_that_fits_has_room_for_agents(gigabytes: float, name: str | None) -> None:
    row = best_that_fits(round(gigabytes * 1e9))
    assert (row.name if row else None) == name
    if row:
        assert row.context >= 100_000 and {"tools", "thinking"} <= set(row.abilities)
        assert best_that_fits(round(gigabytes * 1e9), row.context + 1) is None
