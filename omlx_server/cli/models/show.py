"""`omlx-server show`: prints what is known of a model on this machine; opens no weights."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from omlx_server.cli.models.list import adapters_of, model_json
from omlx_server.cli.models.named import find_with_adapter
from omlx_server.cli.models.server import (
    answer_of,
    chunk_sizes_in_words,
    has_name,
    models_in,
    own_admin_server,
)
from omlx_server.cli.shell.options import load_settings
from omlx_server.cli.shell.output import show_result, visible
from omlx_server.core.model_files.kind import ModelKind
from omlx_server.core.model_files.parser_signs import reasoning_parser_of, tool_parser_of
from omlx_server.core.model_files.weights import types_again
from omlx_server.errors import BadRequest, ConfigError, LoadFailed, OmlxError
from omlx_server.models import layout
from omlx_server.models.description import described
from omlx_server.models.installed import Installed
from omlx_server.models.json_file import read_json, read_object
from omlx_server.models.remove import disk_bytes, size_of
from omlx_server.models.tokenizer_files import TokenizerFiles
from omlx_server.models.vision import preprocessor_config
from omlx_server.settings import Settings
from omlx_server.settings.overrides import ModelOverrides
from omlx_server.settings.values import plain
from omlx_server.wiring.overrides.in_force import DEFAULT, OVERRIDE, values_in_force

_MOST_CHARACTERS = 60
# Width and height in pixels.
_IMAGE_SIZES = ((512, 512), (1024, 1024), (1920, 1080))
_EMPTY_VALUES: tuple[object, ...] = (None, [])
_THINKING = ("reasoning_effort", "thinking_budget")
# The overrides that `_lines_in_force` and `_template_in_words` show.
_SHOWN_OVERRIDES = frozenset({"system", *_THINKING, "sampling", "presets", "chat_template"})


def run(*, name: str, as_json: bool, config: Path | None, sets: Sequence[str]) -> int:
    settings = load_settings(config, sets).settings
    model, adapter = find_with_adapter(settings.models.resolve_alias(name), settings)
    facts = _facts(model, settings)
    if adapter:
        path = adapters_of(model, settings).all()[adapter]
        facts["adapter"] = {"name": adapter, "path": str(path), "disk_bytes": size_of(path)}
    lines = (f"{what:<10} {visible(how)}" for what, how in _fact_lines(facts))
    show_result(facts, lines, as_json=as_json)
    return 0


def _facts(model: Installed, settings: Settings) -> dict[str, Any]:
    overrides, description = settings.overrides_of(model.names), described(model.path)
    facts: dict[str, Any] = model_json(model, settings)
    if sizes := layout.expert_sizes(model.path):
        facts["experts"] = {"per_layer": sizes.experts, "bytes": sizes.nbytes * sizes.experts}
    facts |= {
        "default_adapter": adapters_of(model, settings).default_name or None,
        "disk_bytes": disk_bytes(model.path),
        "quantized_again": types_again(read_object(model.path / "config.json")),
        "sampling": description.recommended if description else {},
        "overrides": plain(overrides),
    }
    if model.kind is ModelKind.CHAT:
        files, template_facts = _template_in_force(model, overrides)
        facts |= template_facts | _values_in_force(facts["sampling"], overrides, settings)
        facts |= _parsers(files, overrides) if facts["chat_template"] else {}
    if facts["images"]:
        facts |= _image_tokens(model, settings)
    return facts | _state_in_server(model, settings)


def _parsers(files: TokenizerFiles, overrides: ModelOverrides) -> dict[str, dict[str, str]]:
    from omlx_server.text.tool_calls.fallback import shows_tools

    sources = list(files.templates.values())
    template, vocabulary = "\n".join(sources), files.vocabulary
    has_tools = any(map(shows_tools, sources))
    tools = tool_parser_of(template, vocabulary, files.tool_parser, shows_tools=has_tools)
    reasoning = reasoning_parser_of(template, vocabulary)
    return {
        "tool_parser": _name_and_origin(overrides.tool_parser, tools),
        "reasoning_parser": _name_and_origin(overrides.reasoning_parser, reasoning),
    }


def _name_and_origin(override: str | None, detected: str) -> dict[str, str]:
    return {"name": override or detected, "origin": "override" if override else "detected"}


def _state_in_server(model: Installed, settings: Settings) -> dict[str, Any]:
    try:
        server = own_admin_server(settings)
        items = models_in(answer_of(server.get("/admin/models")))
    except OmlxError:
        return {}
    item: Mapping[str, Any] = next((item for item in items if has_name(item, model.names)), {})
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
            "experts": item.get("experts"),
        },
    }


def _fact_lines(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "name", facts["name"]
    if other_names := [*facts["names"][1:], *facts["aliases"]]:
        yield "also", ", ".join(other_names)
    if facts["problem"]:
        yield "problem", facts["problem"]
    yield "path", facts["path"]
    yield "source", facts["source"]
    what = ", ".join(filter(None, (facts["model_type"], facts["architecture"])))
    yield "kind", f"{facts['kind']} ({what})" if what else facts["kind"]
    quantized = facts["quantization"] or "not quantized"
    again = "".join(f", {name} in 8 bits" for name in facts["quantized_again"])
    yield "weights", f"{decimal(facts['weight_bytes'])}, {quantized}{again}"
    if "experts" in facts:
        experts = facts["experts"]
        yield "experts", f"{experts['per_layer']} in a layer, {decimal(experts['bytes'])} together"
    yield "disk", decimal(facts["disk_bytes"])
    if facts["context_length"]:
        yield "context", f"{facts['context_length']} tokens"
    if facts["kind"] == ModelKind.CHAT.value:
        yield "images", _images_in_words(facts)
        if facts["adapters"]:
            default = facts["default_adapter"]
            names = facts["adapters"]
            yield "adapters", ", ".join(f"{n} (default)" if n == default else n for n in names)
        if "adapter" in facts:
            adapter = facts["adapter"]
            size = decimal(adapter["disk_bytes"])
            yield "adapter", f"{adapter['name']} ({size}, {adapter['path']})"
    if "template" in facts:
        yield "template", _template_in_words(facts["template"])
    for label, key in (("tools", "tool_parser"), ("reasoning", "reasoning_parser")):
        if key in facts:
            yield label, f"{facts[key]['name']} ({facts[key]['origin']})"
    yield from _request_lines(facts)
    if "server" in facts:
        yield from _server_lines(facts["server"])


def _server_lines(server: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "server", _server_in_words(server)
    if experts := server.get("experts"):
        yield "experts", f"{experts} of each layer in memory, the others stay on the disk"
    if chunks := chunk_sizes_in_words(server):
        yield "chunks", chunks


def _request_lines(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    overrides = facts["overrides"]
    if "in_force" in facts:
        yield from _lines_in_force(facts)
        overrides = {key: overrides[key] for key in overrides if key not in _SHOWN_OVERRIDES}
    elif facts["sampling"]:
        yield "sampling", _in_words(facts["sampling"])
    if overrides:
        yield "overrides", _in_words(overrides)


def _in_words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in _flattened(values))


def _flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _server_in_words(server: Mapping[str, Any]) -> str:
    size = server["weight_bytes"]
    weights = f", {decimal(size)} of weights" if isinstance(size, int) and size else ""
    pinned = ", pinned" if server["pinned"] else ""
    return f"{server['state']}{weights}{pinned}, at {server['url']}"


def _values_in_force(
    recommended: Mapping[str, float], overrides: ModelOverrides, settings: Settings
) -> dict[str, Any]:
    values = values_in_force(recommended, overrides, settings)
    return {
        "in_force": {
            name: {"value": plain(value.value), "origin": value.origin}
            for name, value in values.items()
        },
        "presets": {name: plain(preset) for name, preset in overrides.presets.items()},
    }


def _template_in_force(
    model: Installed, overrides: ModelOverrides
) -> tuple[TokenizerFiles, dict[str, Any]]:
    """Return the tokenizer's files with the template in force, and facts about it."""
    files, path = TokenizerFiles.of(model.path), overrides.chat_template
    if not path:
        source = files.templates.get("default")
        if source is None:
            return files, {"chat_template": False, "template": None}
        own_path = str(model.path / files.template_file)
        facts = _template_json(own_path, files.template_file, source)
        return files, {"chat_template": True, "template": facts}
    from omlx_server.wiring.overrides.templates import checked_template

    try:
        source = checked_template(model.names[0], path)
    except ConfigError as error:
        facts = {"path": path, "origin": OVERRIDE, "sha256": None, "problem": error.message}
        return files, {"chat_template": False, "template": facts}
    facts = _template_json(path, OVERRIDE, source)
    return replace(files, templates={"default": source}), {"chat_template": True, "template": facts}


def _template_json(path: str, origin: str, source: str) -> dict[str, Any]:
    digest = hashlib.sha256(source.encode()).hexdigest()
    return {"path": path, "origin": origin, "sha256": digest, "problem": None}


def _image_tokens(model: Installed, settings: Settings) -> dict[str, Any]:
    """Return the tokens of images by their size, or why the model takes none. Imports numpy."""
    from omlx_server.images.prepare.families import make_preparer
    from omlx_server.images.prepare.prepared import Detail

    try:
        config = read_json(model.path / "config.json")
        detail = Detail(settings.images.max_tokens)
        preparer = make_preparer(preprocessor_config(model.path), config, detail)
        tokens = {f"{w} x {h}": preparer.plan(h, w).tokens for w, h in _IMAGE_SIZES}
    except (BadRequest, LoadFailed) as error:
        return {"images": False, "no_images": error.message}
    return {"image_tokens": tokens}


def _images_in_words(facts: Mapping[str, Any]) -> str:
    if not facts["images"]:
        return f"none: {facts['no_images']}"
    tokens: Mapping[str, int] = facts["image_tokens"]
    if len(set(tokens.values())) == 1:
        words = f"an image is {next(iter(tokens.values()))} tokens"
    else:
        words = ", ".join(f"{size} pixels are {count} tokens" for size, count in tokens.items())
    return f"yes, by a vision tower of {facts['vision']}: {words}"


def _template_in_words(template: Mapping[str, Any] | None) -> str:
    if template is None:
        return "none: it can't chat"
    if template["problem"]:
        return f"none: {template['problem']}"
    if template["origin"] == OVERRIDE:
        return f"{template['path']} ({OVERRIDE}, sha256 {template['sha256'][:12]})"
    return f"yes ({template['origin']})"


def _lines_in_force(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    values = dict(facts["in_force"])  # the value and origin of each name
    system = values.pop("system")
    if system["value"] is not None:
        yield "system", f"{_shortened(system['value'])} ({system['origin']})"
    thinking = {name: values.pop(name) for name in _THINKING}
    if given := {name: item for name, item in thinking.items() if item["value"] is not None}:
        yield "thinking", _by_origin(given)
    given = {name: item for name, item in values.items() if item["value"] not in _EMPTY_VALUES}
    yield "sampling", _by_origin(given)
    for name, preset in facts["presets"].items():
        yield "preset", f"{name}: " + ", ".join(_named_value(*item) for item in preset.items())


def _by_origin(values: Mapping[str, Mapping[str, Any]]) -> str:
    """Return values grouped by origin: overrides first, defaults last."""
    words = defaultdict[str, list[str]](list)
    for name, item in values.items():
        words[item["origin"]].append(_named_value(name, item["value"]))
    origins = sorted(words, key=lambda origin: (origin == DEFAULT, origin != OVERRIDE, origin))
    return "; ".join(f"{', '.join(words[origin])} ({origin})" for origin in origins)


def _named_value(name: str, value: object) -> str:
    if name == "max_tokens" and value == 0:
        return "max_tokens 0 (no limit but the context)"
    return f"{name} {_shortened(value)}"


def _shortened(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | list) else str(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
