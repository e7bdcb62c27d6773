"""The default values of requests to a model, and their origins. Opens no weights."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from omlx_server.errors import ConfigError
from omlx_server.models.tokenizer_files import TokenizerFiles
from omlx_server.settings import Settings
from omlx_server.settings.overrides import ModelOverrides
from omlx_server.settings.values import plain
from omlx_server.wiring.overrides.in_force import DEFAULT, OVERRIDE, values_in_force

_MOST_CHARS = 60
_EMPTY: tuple[object, ...] = (None, [])
_NOT_SAMPLING = ("system", "reasoning_effort", "thinking_budget")
REPORTED = frozenset({*_NOT_SAMPLING, "sampling", "presets", "chat_template"})
"""The overrides that `report_lines` and `template_in_words` show."""


def in_force_shape(
    recommended: Mapping[str, float], overrides: ModelOverrides, settings: Settings
) -> dict[str, Any]:
    values = values_in_force(recommended, overrides, settings)
    return {
        "in_force": {
            name: {"value": plain(one.value), "origin": one.origin} for name, one in values.items()
        },
        "presets": {name: plain(preset) for name, preset in overrides.presets.items()},
    }


def with_template(
    files: TokenizerFiles, directory: Path, name: str, overrides: ModelOverrides
) -> tuple[TokenizerFiles, dict[str, Any]]:
    """Return the tokenizer's files with the template in force, and facts about it."""
    path = overrides.chat_template
    if not path:
        source = files.templates.get("default")
        if source is None:
            return files, {"chat_template": False, "template": None}
        where = str(directory / files.template_file)
        return files, {
            "chat_template": True,
            "template": _template_shape(where, files.template_file, source),
        }
    from omlx_server.wiring.overrides.templates import checked_template

    try:
        source = checked_template(name, path)
    except ConfigError as error:
        facts = {"path": path, "origin": OVERRIDE, "sha256": None, "problem": error.message}
        return files, {"chat_template": False, "template": facts}
    facts = _template_shape(path, OVERRIDE, source)
    return replace(files, templates={"default": source}), {"chat_template": True, "template": facts}


def _template_shape(path: str, origin: str, source: str) -> dict[str, Any]:
    digest = hashlib.sha256(source.encode()).hexdigest()
    return {"path": path, "origin": origin, "sha256": digest, "problem": None}


def template_in_words(template: Mapping[str, Any] | None) -> str:
    if template is None:
        return "none: it can't chat"
    if template["problem"]:
        return f"none: {template['problem']}"
    if template["origin"] == OVERRIDE:
        return f"{template['path']} ({OVERRIDE}, sha256 {template['sha256'][:12]})"
    return f"yes ({template['origin']})"


def report_lines(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    values = facts["in_force"]
    for label, names in (("system", ("system",)), ("thinking", _NOT_SAMPLING[1:])):
        given_values = {name: values[name] for name in names if values[name]["value"] is not None}
        if given_values:
            yield label, _by_origin(given_values, named=label != "system")
    others = {name: one for name, one in values.items() if name not in _NOT_SAMPLING}
    yield "sampling", _by_origin({n: o for n, o in others.items() if o["value"] not in _EMPTY})
    for name, preset in facts["presets"].items():
        yield "preset", f"{name}: " + ", ".join(_in_words(*item) for item in preset.items())


def _by_origin(values: Mapping[str, Mapping[str, Any]], *, named: bool = True) -> str:
    order = sorted(values.items(), key=lambda item: _rank(item[1]["origin"]))
    groups = []
    for origin, group in groupby(order, key=lambda item: item[1]["origin"]):
        words = [
            _in_words(name, one["value"]) if named else _short(one["value"]) for name, one in group
        ]
        groups.append(f"{', '.join(words)} ({origin})")
    return "; ".join(groups)


def _rank(origin: str) -> tuple[bool, bool, str]:
    return origin == DEFAULT, origin != OVERRIDE, origin


def _in_words(name: str, value: object) -> str:
    if name == "max_tokens" and value == 0:
        return "max_tokens 0 (no limit but the context)"
    return f"{name} {_short(value)}"


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | list) else str(value)
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"
