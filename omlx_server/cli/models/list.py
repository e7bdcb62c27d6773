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
from omlx_server.models.adapters.registry import AdapterPlaces
from omlx_server.models.installed import Installed, installed_models
from omlx_server.models.vision import has_pillow
from omlx_server.settings import Settings

# Columns of a table in a pipe, whose readers want whole lines.
_PIPE_COLUMNS = 200
_FOLDED = ("name", "source")
_NUMBERS = ("size", "context", "downloads", "memory", "in use", "idle")


def images_of(model: Installed, settings: Settings) -> dict[str, Any]:
    """Return for JSON whether the model takes images, its vision tower's family (null if
    unknown), and why it takes none."""
    problem = _why_none(model, settings)
    return {"images": not problem, "vision": model.vision or None, "no_images": problem or None}


def _why_none(model: Installed, settings: Settings) -> str:
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
        show_json({"models": [shape(model, settings) for model in models]})
    elif models:
        console().print(_table(models, settings))
    else:
        print("No model is here yet. `omlx-server pull starter` gets a small one.")
    return 0


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS)


def make_table(*columns: str) -> Table:
    """Make a table in which long names are folded and numbers stand on the right."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        if column in _FOLDED:
            table.add_column(column, overflow="fold")
        else:
            is_number = column in _NUMBERS
            table.add_column(column, no_wrap=True, justify="right" if is_number else "left")
    return table


def _table(models: Sequence[Installed], settings: Settings) -> Table:
    table = make_table("name", "kind", "size", "quantized", "context", "source")
    for model in models:
        context = f"{model.context_length}" if model.context_length else ""
        cells = (model.quantization, context, model.source.value)
        size, images = decimal(model.weight_bytes), images_of(model, settings)
        kind = f"{model.kind.value}, images" if images["images"] else model.kind.value
        name = _named(model, settings, images["no_images"])
        table.add_row(name, kind, size, *map(visible, cells))
    return table


def _named(model: Installed, settings: Settings, no_images: str | None) -> Text:
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
    """Return the places of a chat model's adapters. The default adapter belongs to the default
    model."""
    if model.kind is not ModelKind.CHAT:
        return AdapterPlaces(model.path, ())
    models, directory = settings.models, settings.adapters.directory
    served = models.resolve_alias(models.default) in model.names
    default = settings.default_adapter_of(model.names, served=served)
    return AdapterPlaces(model.path, model.names, Path(directory) if directory else None, default)


def shape(model: Installed, settings: Settings) -> dict[str, object]:
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
        **images_of(model, settings),
        "adapters": list(adapters_of(model, settings).all()),
        "source": model.source.value,
        "path": str(model.path),
        "problem": model.problem or None,
    }
