"""What single models have otherwise: names that are checked, and values beside the model's own."""

import logging
from pathlib import Path
from typing import Any

import pytest

from omlx_server.core.request import RequestDefaults
from omlx_server.errors import ConfigError
from omlx_server.settings import Settings
from omlx_server.settings.overrides import ModelOverrides
from omlx_server.text.dialect import dialect_of
from omlx_server.text.reasoning.style import STYLES
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.text.tool_calls.formats import FAMILIES
from omlx_server.wiring.overrides.in_force import request_defaults, values_in_force
from omlx_server.wiring.overrides.names import check_overrides
from omlx_server.wiring.overrides.templates import check_all, template_of
from omlx_server.wiring.served import context_length
from tests.text import chat_templates, makers

MAKERS = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}


def settings_of(**sampling: Any) -> Settings:
    return Settings.of({"sampling": sampling})


def own(**values: Any) -> ModelOverrides:
    return ModelOverrides.of(values)


@pytest.mark.parametrize(
    ("values", "said", "hint"),
    [
        ({"tool_parser": "qwen_coder"}, "tool_parser", "did you mean qwen3_coder? "),
        ({"reasoning_parser": "harmonie"}, "reasoning_parser", "did you mean harmony? "),
        (
            {"chat_template_kwargs": {"enable_think": True}},
            "kwargs",
            "did you mean enable_thinking",
        ),
        ({"tool_parser": "zzz"}, "tool_parser", "It can be apertus, "),
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest(
    values: dict[str, Any], said: str, hint: str
) -> None:
    settings = Settings.of({"models": {"overrides": {"org/x": values}}})
    with pytest.raises(ConfigError) as caught:
        check_overrides(settings)
    assert said in caught.value.message and '"org/x"' in caught.value.message
    assert caught.value.hint.startswith(hint)


def test_every_known_name_will_do() -> None:
    overrides: dict[str, Any] = {f"t{i}": {"tool_parser": n} for i, n in enumerate(FAMILIES)}
    overrides |= {n: {"reasoning_parser": n} for n in STYLES}
    overrides["x"] = {"chat_template_kwargs": {"enable_thinking": False}}
    check_overrides(Settings.of({"models": {"overrides": overrides}}))


def test_a_context_can_be_made_shorter_but_not_longer(caplog: pytest.LogCaptureFixture) -> None:
    assert context_length("m", 4096, own()) == 4096
    assert context_length("m", 4096, own(context_length=100)) == 100
    assert context_length("m", 4096, own(context_length=4096)) == 4096
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert context_length("m", 4096, own(context_length=4097)) == 4096
    assert "context_length of m stays 4096" in caplog.text


def test_what_a_request_leaves_out_is_as_the_makers_say() -> None:
    found = request_defaults(MAKERS, own(), settings_of(max_tokens=7))
    assert found == RequestDefaults(0.6, 0.95, 20, 0.0, 1.0, 7)


def test_or_as_the_api_has_it() -> None:
    found = request_defaults(MAKERS, own(), settings_of(source="openai", max_tokens=7))
    assert found == RequestDefaults(max_tokens=7)


@pytest.mark.parametrize("source", ["model", "openai"])
def test_or_as_the_override_says_before_both(source: str) -> None:
    sampling = {"temperature": 0, "top_p": 0.5, "top_k": 0, "min_p": 0.1}
    more = {"repetition_penalty": 1.1, "max_tokens": 0}
    found = request_defaults(
        MAKERS, own(sampling=sampling | more), settings_of(source=source, max_tokens=7)
    )
    assert found == RequestDefaults(0.0, 0.5, 0, 0.1, 1.1, 0)


def test_an_override_of_one_field_leaves_the_others() -> None:
    found = request_defaults(MAKERS, own(sampling={"top_k": 5}), settings_of())
    assert found == RequestDefaults(0.6, 0.95, 5, 0.0, 1.0, 0)


def test_a_preset_goes_before_the_override_key_by_key() -> None:
    sampling = {"temperature": 0.1, "seed": 1, "stop": ["a"], "max_tokens": 5}
    preset = {"temperature": 0.9, "stop": [], "system": "", "reasoning_effort": "high"}
    given = own(sampling=sampling, system="x", thinking_budget=3, presets={"p": preset, "q": {}})
    settings = settings_of(max_tokens=7)
    found = request_defaults(MAKERS, given, settings, "p")
    assert (found.temperature, found.top_p, found.seed, found.stop) == (0.9, 0.95, 1, ())
    assert (found.system, found.reasoning_effort, found.thinking_budget) == ("", "high", 3)
    assert request_defaults(MAKERS, given, settings, "q") == request_defaults(
        MAKERS, given, settings
    )
    values = values_in_force(MAKERS, given, settings, "p")
    assert {name: one.origin for name, one in values.items()} == {
        **dict.fromkeys(("temperature", "stop", "system", "reasoning_effort"), "preset p"),
        **dict.fromkeys(("seed", "max_tokens", "thinking_budget"), "override"),
        **dict.fromkeys(("top_p", "top_k"), "generation_config.json"),
        **dict.fromkeys(("min_p", "repetition_penalty"), "default"),
        **dict.fromkeys(("presence_penalty", "frequency_penalty"), "default"),
    }


# --- Templates -----------------------------------------------------------------------------------

TOOLS = "[TOOL_CALLS]{{ tools }}{{ messages[0].content }}"


def test_the_markup_is_recognised_by_the_template_that_is_in_force(tmp_path: Path) -> None:
    path = makers.save(tmp_path, "byte_level", chat_templates.CHATML)
    plain, other = Tokenizer.load(path), Tokenizer.load(path, template=TOOLS)
    names = [dialect_of(one, lambda messages, **_: "").family.name for one in (plain, other)]
    assert names == ["json_tools", "mistral"]
    assert other.encode("a b") == plain.encode("a b")


def test_the_template_of_a_model_is_that_of_any_of_its_names(tmp_path: Path) -> None:
    file = tmp_path / "x.jinja"
    overrides = {"small": {"chat_template": str(file)}, "b": {"chat_template": ""}}
    models = {"overrides": overrides, "aliases": {"small": "a"}}
    settings = Settings.of({"models": models})
    with pytest.raises(ConfigError, match=r"a\.chat_template: .*x.jinja can't be read: No such"):
        template_of(("a",), settings)
    file.write_bytes(TOOLS.encode() + b"\r\n")
    assert template_of(("a",), settings) == f"{TOOLS}\n"
    assert template_of(("b",), settings) is None
    check_all(settings)
    for content, said in ((b"\xff", "it is not UTF-8 text"), (b"{{", "line 1: the chat template")):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=said):
            check_all(settings)
    with pytest.raises(ConfigError, match="can't be zzz"):
        check_all(Settings.of({"models": {"overrides": {"a": {"tool_parser": "zzz"}}}}))
