"""The families of models that README.md and docs/architectures.md name are those of the table."""

import pytest

from scripts.reference import families
from tests.docs.blocks import ROOT


@pytest.mark.parametrize("name", families.pages())
def test_a_page_names_what_is_served(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert page == families.inserted(page, families.pages()[name]), (
        f"{name} is out of date: run `scripts/docs reference` and commit it"
    )


def test_every_family_has_a_type_that_is_served() -> None:
    found = families.by_family()
    assert [name for name, types in found.items() if not types] == []
    assert found["Llama"] == ["llama", "llama4", "llama4_text", "llama_sliding"]
    assert "klear" in map(str.lower, found[families.OTHERS])


def test_what_is_not_served_is_not_named() -> None:
    served = {type_ for types in families.by_family().values() for type_ in types}
    assert len(served) > 100
    assert not served & {"architecture", "bitnet", "muse_spark", "olmo"}


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="has no"):
        families.inserted("# Title", "text")
