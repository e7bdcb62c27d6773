"""Types in the names of GGUF files, as people publish them."""

import pytest

from omlx_server.core.model_files.gguf_names import (
    choose_tag,
    has_form,
    is_first,
    is_tag,
    parts_of,
    tag_of,
    whole_stem,
)

TAGS = {
    "Qwen3-4B-Q4_K_M.gguf": "Q4_K_M",
    "gemma-3-270m-it-qat-q4_0.gguf": "Q4_0",
    "llama-2-7b.Q5_K_S.gguf": "Q5_K_S",
    "gpt-oss-20b-mxfp4.gguf": "MXFP4",
    "Qwen3-8B-UD-Q4_K_XL.gguf": "UD-Q4_K_XL",
    "Llama-3.2-1B-Instruct-f16.gguf": "F16",
    "Phi-3-mini-4k-instruct-q4.gguf": "Q4",
    "Qwen3-4B-IQ4_XS.gguf": "IQ4_XS",
    "big-Q4_K_M-00001-of-00002.gguf": "Q4_K_M",
    "Q8_0/big-00001-of-00003.gguf": "Q8_0",
    "big-Q6_K/part-00002-of-00003.gguf": "Q6_K",
    "Q8_0/small-Q4_K_M-imat.gguf": "Q4_K_M",
    "Qwen3-4B.gguf": "",
    "Q4-model/deep/model.gguf": "",
    "FP4Q.gguf": "",
}


@pytest.mark.parametrize("path", TAGS)
def test_a_files_tag_is_the_last_type_in_its_name(path: str) -> None:
    assert tag_of(path) == TAGS[path]
    assert not TAGS[path] or is_tag(TAGS[path].lower())


@pytest.mark.parametrize("text", ["", "latest", "4b", "my-adapter", "Q4_K_M/x", "Q", "Q4-K"])
def test_other_words_are_no_tags(text: str) -> None:
    assert not is_tag(text)


def test_parts_are_one_model() -> None:
    parts = parts_of("a/big-Q8_0-00001-of-00002.gguf")
    assert parts == ["a/big-Q8_0-00001-of-00002.gguf", "a/big-Q8_0-00002-of-00002.gguf"]
    assert [is_first(part) for part in parts] == [True, False]
    assert {whole_stem(part) for part in parts} == {"big-Q8_0"}
    assert parts_of("small.gguf") == ["small.gguf"] and is_first("small.gguf")


@pytest.mark.parametrize("name", ["mmproj-F16.gguf", "x.mmproj-q8_0.gguf", "imatrix.gguf", "a.bin"])
def test_towers_and_notes_of_a_quantisation_are_no_models(name: str) -> None:
    assert not is_first(name)


@pytest.mark.parametrize(
    ("tags", "asked", "tag"),
    [
        (("Q8_0", "Q4_K_M"), "", "Q4_K_M"),
        (("Q8_0",), "", "Q8_0"),
        (("Q8_0", "Q4_0"), "", ""),
        ((), "", ""),
        (("Q8_0", "Q4_0"), "Q4_0", "Q4_0"),
        (("Q8_0",), "Q4_0", ""),
        (("UD-Q4_K_XL", "Q4_K_M"), "Q4_K_XL", "UD-Q4_K_XL"),
        (("UD-Q8_0", "Q8_0"), "Q8_0", "Q8_0"),
    ],
)
def test_a_tag_is_chosen(tags: tuple[str, ...], asked: str, tag: str) -> None:
    assert choose_tag(tags, asked) == tag


def test_types_without_a_form_are_told_by_their_names() -> None:
    assert [has_form(tag) for tag in ("Q4_K_M", "UD-Q2_K_XL", "MXFP4", "BF16", "FP16")] == [
        True
    ] * 5
    assert [has_form(tag) for tag in ("IQ4_XS", "UD-IQ2_M", "TQ1_0", "NVFP4")] == [False] * 4
