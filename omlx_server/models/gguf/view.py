"""Shows a GGUF file as a model directory: its config and tokenizer, made once from the file's head,
and a link to the file itself, which is neither copied nor changed."""

import hashlib
import re
import struct
from contextlib import suppress
from pathlib import Path

from omlx_server.core.gguf.families import config_of, is_used
from omlx_server.core.gguf.fields import FACTORS, Factors
from omlx_server.core.gguf.forms import (
    bytes_in_mlx,
    check_types,
    count_values,
    main_type,
    types_again,
)
from omlx_server.core.gguf.head import GgufHead, parse_head
from omlx_server.core.model_files.gguf_names import is_part, parts_of
from omlx_server.core.model_files.weights import GGUF, GGUF_LINKS
from omlx_server.errors import ModelUnavailable, NoPlaceForModels, one_line
from omlx_server.models import json_file, layout
from omlx_server.models.catalogue import has_gpu
from omlx_server.models.gguf.tokenizer import save_tokenizer
from omlx_server.models.staging import prepare, staged, staging_directory
from omlx_server.models.tokenizer_files import TEMPLATE

VIEWS = ".gguf"
"""The folder of views, beside the server's own models."""
_VIEW = re.compile(r".+-[0-9a-f]{12}")
_VIEW_BYTES = 50_000_000  # the tokenizer of a large vocabulary


def view_of(file: Path, views: Path) -> Path:
    """Return the directory that shows a file, without its tokenizer at first. Raises
    ModelUnavailable for a file that can't be served."""
    files = _parts(file)
    target = views / _name(files)
    if (target / "config.json").is_file():
        return target
    heads = [_head(part) for part in files]
    tensors = [tensor for head in heads for tensor in head.tensors]
    head = GgufHead(heads[0].fields, tuple(tensors))
    try:
        config = config_of(head, _factors(files[0], heads[0]))
        check_types(tensors)
        tensors = [tensor for tensor in tensors if is_used(tensor.name, config)]
    except ValueError as error:
        raise _unfit(file, error) from error
    config[GGUF] = {
        "type": main_type(tensors),
        "weight_bytes": bytes_in_mlx(tensors, 2 if has_gpu() else 4),
        "parameters": count_values(tensors),
        "again": types_again(tensors),
    }
    prepare(views, file.name, _VIEW_BYTES)
    with staged(target, lambda path: (path / "config.json").is_file()) as work:
        for number, part in enumerate(files, start=1):
            name = f"{number:05}-of-{len(files):05}"
            (work / "model" / GGUF_LINKS.replace("*", name)).symlink_to(part)
        template = head.fields.get("tokenizer.chat_template")
        if isinstance(template, str):  # it tells, before there is a tokenizer, what the model can
            (work / "model" / TEMPLATE).write_text(template, encoding="utf-8")
        json_file.write(work / "model" / "config.json", config)
    return target


def remove_old(views: Path) -> None:
    """Remove the views of files that are gone or have changed."""
    with suppress(OSError, NoPlaceForModels):
        for view in [] if views.is_symlink() else list(views.iterdir()):
            if _is_old(view):
                # Another server may be first.
                with staging_directory(views) as work, suppress(OSError):
                    view.rename(work / "model")


def _is_old(view: Path) -> bool:
    """Whether all in a directory was made here, for a file that is not as it was."""
    if view.is_symlink() or _VIEW.fullmatch(view.name) is None:
        return False
    links = layout.gguf_links(view)
    if not links or not all(link.is_symlink() for link in links):
        return False
    if any(path.is_dir() for path in view.iterdir()):  # adapters, which are the user's
        return False
    try:
        return _name([link.resolve() for link in links]) != view.name
    except ModelUnavailable:
        return True


def complete(directory: Path) -> None:
    """Make the tokenizer of a view, unless it is there. Raises ModelUnavailable."""
    file = layout.real_path(directory)
    if file == directory or (directory / "tokenizer.json").is_file():
        return
    try:
        context = json_file.read(directory / "config.json")["max_position_embeddings"]
        save_tokenizer(_head(file).fields, directory, context, {})
    except (KeyError, TypeError, ValueError) as error:
        raise _unfit(file, error) from error


def _parts(file: Path) -> list[Path]:
    """Return all files of a split model, the first of which has its fields."""
    # In a hub's cache a link has the name, and what it leads to has none.
    parts = [*map(Path, parts_of(str(file if is_part(file.name) else file.resolve())))]
    if len(parts) > 1 and (missing := [part for part in parts if not part.is_file()]):
        raise ModelUnavailable(f"{file.parent} has no {missing[0].name}")
    return [part.resolve() for part in parts]


def _name(files: list[Path]) -> str:
    """Return a view's name: another one for a file that changed."""
    try:
        states = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    except OSError as error:
        raise _unfit(files[0], error) from error
    return f"{files[0].stem}-{hashlib.sha256(repr(states).encode()).hexdigest()[:12]}"


def _head(file: Path) -> GgufHead:
    try:
        with file.open("rb") as stream:
            return parse_head(stream, file.stat().st_size)
    except (OSError, ValueError) as error:
        raise _unfit(file, error) from error


def _factors(file: Path, head: GgufHead) -> Factors:
    factors = dict[str, list[float]]()
    with file.open("rb") as stream:
        for place in head.tensors:
            if place.name in FACTORS and place.kind.name == "F32":
                stream.seek(place.start)
                data = stream.read(place.nbytes)
                factors[place.name] = list(struct.unpack(f"<{len(data) // 4}f", data))
    return factors


def _unfit(file: Path, error: Exception) -> ModelUnavailable:
    return ModelUnavailable(f"{file} can't be served: {one_line(error)}")
