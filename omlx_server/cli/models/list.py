"""`omlx-server list`: lists the models on this machine."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from omlx_server.cli.shell.options import load_settings
from omlx_server.cli.shell.output import show_json, visible
from omlx_server.core.model_files.kind import ModelKind
from omlx_server.core.model_files.vision import server_lacks
from omlx_server.models import layout
from omlx_server.models.adapters.registry import AdapterPlaces
from omlx_server.models.installed import Installed, installed_models
from omlx_server.models.vision import has_pillow
from omlx_server.settings import Settings

# The width of a table in a pipe, whose readers want whole lines.
_PIPE_CHARACTERS = 200
_FOLDED_COLUMNS = ("name", "source")
_COLUMNS_OF_NUMBERS = ("size", "context", "downloads", "memory", "in use", "idle")


def image_facts(model: Installed, settings: Settings) -> dict[str, Any]:
    """Return for JSON whether the model takes images, with which tower, and why it takes none."""
    problem = _why_no_images(model, settings)
    return {"images": not problem, "vision": model.vision or None, "no_images": problem or None}


def _why_no_images(model: Installed, settings: Settings) -> str:
    if model.kind is not ModelKind.CHAT:
        return "it is no chat model"
    mode = settings.speculation_of(model.names).mode
    return model.no_images or server_lacks(
        enabled=settings.images.enabled, has_pillow=has_pillow(), uses_heads=mode == "heads"
    )


def run(*, as_json: bool, config: Path | None, sets: Sequence[str]) -> int:
    settings = load_settings(config, sets).settings
    models = installed_models(settings.models)
    if as_json:
        show_json({"models": [model_json(model, settings) for model in models]})
    elif models:
        console().print(_table(models, settings))
    else:
        print("No model is here yet. `omlx-server pull starter` gets a small one.")
    return 0


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _PIPE_CHARACTERS)


def make_table(*columns: str) -> Table:
    """Make a table in which long names are folded and numbers stand on the right."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        if column in _FOLDED_COLUMNS:
            table.add_column(column, overflow="fold")
        else:
            is_number = column in _COLUMNS_OF_NUMBERS
            table.add_column(column, no_wrap=True, justify="right" if is_number else "left")
    return table


def _table(models: Sequence[Installed], settings: Settings) -> Table:
    table = make_table("name", "kind", "size", "quantized", "context", "source")
    for model in models:
        images = image_facts(model, settings)
        table.add_row(
            _name_cell(model, settings, images["no_images"]),
            f"{model.kind.value}, images" if images["images"] else model.kind.value,
            decimal(model.weight_bytes),
            visible(model.quantization),
            f"{model.context_length}" if model.context_length else "",
            visible(model.source.value),
        )
    return table


def _name_cell(model: Installed, settings: Settings, no_images: str | None) -> Text:
    text = Text(visible(model.names[0]))
    if also := _aliases_of(model, settings.models.aliases):
        text.append(f"\n  also {', '.join(map(visible, also))}", "dim")
    if adapters := adapters_of(model, settings).all():
        text.append(f"\n  adapters {', '.join(map(visible, adapters))}", "dim")
    if model.problem:
        text.append(f"\n  {visible(model.problem)}", "yellow")
    elif model.has_vision and no_images:
        text.append(f"\n  no images: {visible(no_images)}", "dim")
    return text


def _aliases_of(model: Installed, aliases: Mapping[str, str]) -> list[str]:
    return [name for name, target in aliases.items() if target in model.names]


def adapters_of(model: Installed, settings: Settings) -> AdapterPlaces:
    """Return the places of a chat model's adapters; the default adapter is the default model's."""
    if model.kind is not ModelKind.CHAT:
        return AdapterPlaces(model.path, ())
    models, shared = settings.models, settings.adapters.directory
    is_default = models.resolve_alias(models.default) in model.names
    default = settings.default_adapter_of(model.names, served=is_default)
    return AdapterPlaces(model.path, model.names, Path(shared) if shared else None, default)


def model_json(model: Installed, settings: Settings) -> dict[str, object]:
    """Return a model for JSON: sizes in bytes, the context in tokens."""
    return {
        "name": model.names[0],
        "names": list(model.names),
        "aliases": _aliases_of(model, settings.models.aliases),
        "kind": model.kind.value,
        "model_type": model.model_type or None,
        "architecture": model.architecture or None,
        "quantization": model.quantization or None,
        "weight_bytes": model.weight_bytes,
        "context_length": model.context_length,
        **image_facts(model, settings),
        "adapters": list(adapters_of(model, settings).all()),
        "source": model.source.value,
        "path": str(layout.real_path(model.path)),
        "problem": model.problem or None,
    }
