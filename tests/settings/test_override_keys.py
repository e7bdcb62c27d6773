"""One key of a model's overrides, as commands name it."""

import json
from pathlib import Path

import pytest

from omlx_server.errors import ConfigError
from omlx_server.settings import load
from omlx_server.settings.fields import Section, fields_of
from omlx_server.settings.override_keys import FIELDS, find_override
from omlx_server.settings.overrides import (
    KvCacheOverride,
    ModelOverrides,
    PresetOverride,
    SamplingOverride,
    SpeculationOverride,
)
from tests.settings.reading import refusal, write


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
        ("org/x-1.5.presets.coder.temperature", "org/x-1.5", "presets.coder.temperature"),
        ("a.presets.b-2", "a", "presets.b-2"),
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
    for name in fields_of(PresetOverride):
        assert find_override(f"models.overrides.a.presets.b.{name}").key == f"presets.b.{name}"


@pytest.mark.parametrize(
    ("own", "said", "hint"),
    [
        ("presets.b.temprature", "unknown key", "NAME.presets.PRESET.temperature?"),
        ("presets.b.ttl", "unknown key", "a preset can have system, "),
        ("presets.b.c.seed", "unknown key", "NAME.presets.PRESET.seed?"),
        ("sampling.sed", "unknown key", "NAME.sampling.seed?"),
    ],
)
def test_an_unknown_key_is_an_error_with_the_nearest(own: str, said: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        find_override(f"models.overrides.a.{own}")
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"presets": {"b": {"temperature": 3}}}, "presets.b.temperature: expected a number"),
        ({"presets": {"b": {"ttl": 3}}}, "unknown key models.overrides.a.presets.b.ttl"),
        ({"presets": {"b": 3}}, "presets.b: expected a table"),
        ({"presets": {"b c": {}}}, "'b c' can't be the name of a preset"),
        ({"presets": {"b": {"stop": "x"}}}, "presets.b.stop: expected a list of at most 32"),
        ({"reasoning_effort": "off"}, "reasoning_effort: expected one of none, minimal,"),
        ({"sampling": {"seed": -1}}, "sampling.seed: expected an integer from 0"),
        ({"sampling": {"presence_penalty": 3}}, "presence_penalty: expected a number from -2"),
        ({"chat_template": 3}, "chat_template: expected the path of a .jinja file"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_with_its_key(
    table: dict[str, object], said: str
) -> None:
    assert said in refusal(None, {"models.overrides": json.dumps({"a": table})}).message


@pytest.mark.parametrize("key", ["chat_template", "adapter"])
def test_a_path_of_a_model_begins_at_the_config_file(key: str, home: Path) -> None:
    texts = {"a": "t/x.jinja", "b": "/abs/y.jinja", "c": "~/z.jinja", "d": ""}
    tables = "".join(f"{name} = {{ {key} = '{text}' }}\n" for name, text in texts.items())
    path = write(home / "etc" / "c.toml", f"[models.overrides]\n{tables}")
    own = load(path, {}, {}).settings.models.overrides
    assert {name: getattr(one, key) for name, one in own.items()} == {
        "a": f"{home}/etc/t/x.jinja",
        "b": "/abs/y.jinja",
        "c": f"{home}/z.jinja",
        "d": "",
    }
    given = json.dumps({"a": {key: "t/x.jinja"}})
    flagged = load(None, {"models.overrides": given}, {}).settings.models.overrides
    assert getattr(flagged["a"], key) == "t/x.jinja", "there is no config file that it belongs to"


@pytest.mark.parametrize(
    ("key", "written", "means"),
    [
        ("default", "./writer", "{home}/etc/writer"),
        ("default", "../writer", "{home}/etc/../writer"),
        ("default", "tuned/writer", "{home}/etc/tuned/writer"),
        ("default", "~/writer", "{home}/writer"),
        ("default", "/abs/writer", "/abs/writer"),
        ("default", "writer", "writer"),
        ("default", "", ""),
        ("directory", "adapters", "{home}/etc/adapters"),
        ("directory", "", ""),
    ],
)
def test_so_does_a_path_of_adapters_but_not_a_name(
    key: str, written: str, means: str, home: Path
) -> None:
    path = write(home / "etc" / "c.toml", f"[adapters]\n{key} = '{written}'\n")
    assert str(getattr(load(path, {}, {}).settings.adapters, key)) == means.format(home=home)
    flags = {f"adapters.{key}": written}
    flagged = str(getattr(load(path, flags, {}).settings.adapters, key))
    assert flagged == written, "a flag has nothing to do with the file"
    variables = {f"OMLX_ADAPTERS__{key.upper()}": written}
    assert str(getattr(load(path, {}, variables).settings.adapters, key)) == written


@pytest.mark.parametrize(
    "text", ['{"org/a" = {kv_cache = {bits = 8}}}', '{"org/a": {"kv_cache": {"bits": 8}}}']
)
def test_a_flag_takes_the_form_that_its_message_shows_and_json(text: str) -> None:
    own = load(None, {"models.overrides": text}, {}).settings.models.overrides
    assert own["org/a"].kv_cache.bits == 8
    assert (
        '{"org/name" = {kv_cache = {bits = 8}}}' in refusal(None, {"models.overrides": "x"}).message
    )
    assert "expected tables" in refusal(None, {"models.overrides": f"{text}\nmore = 1"}).message
