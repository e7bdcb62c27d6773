"""`omlx-server show`: prints what is known of a model on this machine; opens no weights."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from omlx_server.cli.models.list import adapters_of, shape
from omlx_server.cli.models.named import with_adapter
from omlx_server.cli.models.server import (
    answer_of,
    in_chunks,
    is_of,
    items_of,
    own_admin_server,
)
from omlx_server.cli.shell.options import load_settings
from omlx_server.cli.shell.output import show_result, visible
from omlx_server.core.model_files.kind import ModelKind
from omlx_server.core.model_files.parser_signs import reasoning_parser_of, tool_parser_of
from omlx_server.errors import BadRequest, ConfigError, LoadFailed, OmlxError
from omlx_server.models.description import described
from omlx_server.models.installed import Installed
from omlx_server.models.json_file import read_json
from omlx_server.models.remove import freed_by, size_of
from omlx_server.models.tokenizer_files import TokenizerFiles
from omlx_server.models.vision import preprocessor_config
from omlx_server.settings import Settings
from omlx_server.settings.overrides import ModelOverrides
from omlx_server.settings.values import plain
from omlx_server.wiring.overrides.in_force import DEFAULT, OVERRIDE, values_in_force

_MOST_CHARS = 60
# Width and height in pixels.
_SIZES = ((512, 512), (1024, 1024), (1920, 1080))
_EMPTY: tuple[object, ...] = (None, [])
_NOT_SAMPLING = ("system", "reasoning_effort", "thinking_budget")
REPORTED = frozenset({*_NOT_SAMPLING, "sampling", "presets", "chat_template"})
"""The overrides that `report_lines` and `template_in_words` show."""


def run(*, name: str, as_json: bool, config: Path | None, sets: Sequence[str]) -> int:
    settings = load_settings(config, sets).settings
    model, adapter = with_adapter(settings.models.resolve_alias(name), settings)
    facts = _facts(model, settings)
    if adapter:
        path = adapters_of(model, settings).all()[adapter]
        facts["adapter"] = {"name": adapter, "path": str(path), "disk_bytes": size_of(path)}
    lines = (f"{what:<10} {visible(how)}" for what, how in _lines(facts))
    show_result(facts, lines, as_json=as_json)
    return 0


def _facts(model: Installed, settings: Settings) -> dict[str, Any]:
    overrides, about = settings.overrides_of(model.names), described(model.path)
    facts: dict[str, Any] = shape(model, settings)
    facts |= {
        "default_adapter": adapters_of(model, settings).default_name or None,
        "disk_bytes": freed_by(model),
        "sampling": about.recommended if about else {},
        "overrides": plain(overrides),
    }
    if model.kind is ModelKind.CHAT:
        name, files = model.names[0], TokenizerFiles.of(model.path)
        files, template_facts = with_template(files, model.path, name, overrides)
        facts |= template_facts | in_force_shape(facts["sampling"], overrides, settings)
        facts |= _parsers(files, overrides) if facts["chat_template"] else {}
    if facts["images"]:
        facts |= _image_tokens(model, settings)
    return facts | _in_server(model, settings)


def _image_tokens(model: Installed, settings: Settings) -> dict[str, Any]:
    try:
        return {"image_tokens": tokens_of_images(model, settings)}
    except LoadFailed as error:
        return {"images": False, "no_images": error.message}


def _parsers(files: TokenizerFiles, overrides: ModelOverrides) -> dict[str, dict[str, str]]:
    sources = list(files.templates.values())
    template, vocabulary = "\n".join(sources), files.vocabulary
    shows_tools = any(map(_shows_tools, sources))
    tools = tool_parser_of(template, vocabulary, files.tool_parser, shows_tools=shows_tools)
    return {
        "tool_parser": _chosen(overrides.tool_parser, tools),
        "reasoning_parser": _chosen(
            overrides.reasoning_parser, reasoning_parser_of(template, vocabulary)
        ),
    }


def _shows_tools(template: str) -> bool:
    from omlx_server.text.tool_calls.fallback import supports_tools

    try:
        return supports_tools(template)
    except RecursionError:  # nor could a server use it
        return False


def _chosen(override: str | None, detected: str) -> dict[str, str]:
    return {"name": override or detected, "origin": "override" if override else "detected"}


def _in_server(model: Installed, settings: Settings) -> dict[str, Any]:
    try:
        server = own_admin_server(settings)
        items = items_of(answer_of(server.get("/admin/models")))
    except OmlxError:
        return {}
    item: Mapping[str, Any] = next((item for item in items if is_of(item, model.names)), {})
    state = item.get("state", "absent")
    return {
        "loaded": state == "loaded",
        "server": {
            "url": server.url,
            "state": state,
            "pinned": item.get("pinned", False),
            "weight_bytes": item.get("weight_bytes"),
            "chunk_tokens": item.get("chunk_tokens"),
            "chunk_tokens_alone": item.get("chunk_tokens_alone"),
        },
    }


def _lines(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "name", facts["name"]
    if also := [*facts["names"][1:], *facts["aliases"]]:
        yield "also", ", ".join(also)
    if facts["problem"]:
        yield "problem", facts["problem"]
    yield "path", facts["path"]
    yield "source", facts["source"]
    what = ", ".join(filter(None, (facts["model_type"], facts["architecture"])))
    yield "kind", f"{facts['kind']} ({what})" if what else facts["kind"]
    quantized = facts["quantization"] or "not quantized"
    yield "weights", f"{decimal(facts['weight_bytes'])}, {quantized}"
    yield "disk", decimal(facts["disk_bytes"])
    if facts["context_length"]:
        yield "context", f"{facts['context_length']} tokens"
    if facts["kind"] == ModelKind.CHAT.value:
        yield "images", images_in_words(facts)
        if facts["adapters"]:
            default = facts["default_adapter"]
            names = (f"{n} (default)" if n == default else n for n in facts["adapters"])
            yield "adapters", ", ".join(names)
        if "adapter" in facts:
            adapter = facts["adapter"]
            size = decimal(adapter["disk_bytes"])
            yield "adapter", f"{adapter['name']} ({size}, {adapter['path']})"
    if "template" in facts:
        yield "template", template_in_words(facts["template"])
    for label, key in (("tools", "tool_parser"), ("reasoning", "reasoning_parser")):
        if key in facts:
            yield label, f"{facts[key]['name']} ({facts[key]['origin']})"
    yield from _of_requests(facts)
    if "server" in facts:
        yield "server", _server(facts["server"])
        if chunks := in_chunks(facts["server"]):
            yield "chunks", chunks


def _of_requests(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    reported: Collection[str] = ()
    if "in_force" in facts:
        yield from report_lines(facts)
        reported = REPORTED
    elif facts["sampling"]:
        yield "sampling", _in_words(facts["sampling"])
    if others := {key: value for key, value in facts["overrides"].items() if key not in reported}:
        yield "overrides", _in_words(others)


def _in_words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in _flat(values))


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _server(server: Mapping[str, Any]) -> str:
    size = server["weight_bytes"]
    weights = f", {decimal(size)} of weights" if isinstance(size, int) and size else ""
    pinned = ", pinned" if server["pinned"] else ""
    return f"{server['state']}{weights}{pinned}, at {server['url']}"


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


def tokens_of_images(model: Installed, settings: Settings) -> dict[str, int]:
    """Return the tokens of images by width and height. Imports numpy. Raises LoadFailed."""
    from omlx_server.images.prepare.families import make_preparer
    from omlx_server.images.prepare.prepared import Detail

    config = read_json(model.path / "config.json")
    detail = Detail(settings.images.max_tokens)
    preparer = make_preparer(preprocessor_config(model.path), config, detail)
    try:
        plans = {(width, height): preparer.plan(height, width) for width, height in _SIZES}
    except BadRequest as error:
        raise LoadFailed(error.message) from error
    return {f"{width} x {height}": plan.tokens for (width, height), plan in plans.items()}


def images_in_words(facts: Mapping[str, Any]) -> str:
    if not facts["images"]:
        return f"none: {facts['no_images']}"
    tokens: Mapping[str, int] = facts["image_tokens"]
    if len(set(tokens.values())) == 1:
        words = f"an image is {next(iter(tokens.values()))} tokens"
    else:
        words = ", ".join(f"{size} pixels are {count} tokens" for size, count in tokens.items())
    return f"yes, by a vision tower of {facts['vision']}: {words}"


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
        yield "preset", f"{name}: " + ", ".join(_named_value(*item) for item in preset.items())


def _by_origin(values: Mapping[str, Mapping[str, Any]], *, named: bool = True) -> str:
    order = sorted(values.items(), key=lambda item: _rank(item[1]["origin"]))
    groups = []
    for origin, group in groupby(order, key=lambda item: item[1]["origin"]):
        words = [
            _named_value(name, one["value"]) if named else _short(one["value"])
            for name, one in group
        ]
        groups.append(f"{', '.join(words)} ({origin})")
    return "; ".join(groups)


def _rank(origin: str) -> tuple[bool, bool, str]:
    return origin == DEFAULT, origin != OVERRIDE, origin


def _named_value(name: str, value: object) -> str:
    if name == "max_tokens" and value == 0:
        return "max_tokens 0 (no limit but the context)"
    return f"{name} {_short(value)}"


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | list) else str(value)
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"
