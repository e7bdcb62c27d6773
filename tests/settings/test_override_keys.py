"""One key of a model's overrides, as commands name it."""

import pytest

from omlx_server.settings.fields import Section, fields_of
from omlx_server.settings.override_keys import FIELDS, find_override
from omlx_server.settings.overrides import (
    KvCacheOverride,
    ModelOverrides,
    SamplingOverride,
    SpeculationOverride,
)


@pytest.mark.parametrize(
    ("dotted", "model", "key"),
    [
        ("a.ttl", "a", "ttl"),
        ("a.b.ttl", "a.b", "ttl"),
        ("a.sampling.top_p", "a", "sampling.top_p"),
        ("a.sampling", "a", "sampling"),
        ("org/x-1.5.kv_cache.bits", "org/x-1.5", "kv_cache.bits"),
        ('"a.ttl".ttl', "a.ttl", "ttl"),
        ("'a.ttl'.kv_cache.bits", "a.ttl", "kv_cache.bits"),
        ("a.chat_template_kwargs.x.y", "a", "chat_template_kwargs.x.y"),
    ],
)
def test_a_name_may_have_dots(dotted: str, model: str, key: str) -> None:
    found = find_override(f"models.overrides.{dotted}")
    assert (found.model, found.key) == (model, key)


def test_every_field_of_the_settings_can_be_named() -> None:
    nested: dict[str, type[Section]] = {
        "sampling": SamplingOverride,
        "kv_cache": KvCacheOverride,
        "speculation": SpeculationOverride,
    }
    expected = set(fields_of(ModelOverrides))
    for name, section in nested.items():
        expected |= {f"{name}.{field}" for field in fields_of(section)}
    assert set(FIELDS) == expected
