"""Loads a model directory into memory. Mlx thread."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import gemma3
from mlx_lm.utils import _get_classes, load_model

from omlx_server.compute.adapters.adapters import AdapterStore
from omlx_server.compute.architectures.gemma3 import Gemma3Model
from omlx_server.compute.architectures.idefics3 import Idefics3Model, ModelArgs
from omlx_server.compute.architectures.pair import Headed, members
from omlx_server.compute.experts.install import DiskExperts, leave_on_disk
from omlx_server.compute.kv import dispatch
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.model.fingerprint import fingerprint, together_fingerprint
from omlx_server.compute.model.heads import with_heads
from omlx_server.compute.quantise import Quantised, use_rows_of_own_length, use_scheme
from omlx_server.compute.row_ends import verifies_drafts
from omlx_server.compute.vision.families import family_of
from omlx_server.compute.vision.rope import use_axes
from omlx_server.compute.vision.vision import Vision
from omlx_server.compute.vision.weights import loading_tower
from omlx_server.compute.weights.gguf.tensors import loading_gguf
from omlx_server.compute.weights.weights import (
    gguf_files,
    guarded_load,
    guarded_loading,
    reading,
    view_of,
)
from omlx_server.core.experts.files import ExpertFiles
from omlx_server.core.model_files.weights import own_quantization
from omlx_server.core.ranks import ALONE, Ranks
from omlx_server.core.speculation.methods import DraftVerification
from omlx_server.core.work import Work, finish
from omlx_server.errors import ModelUnavailable

_log = logging.getLogger(__name__)

# Classes of our own for mlx-lm's `load_model`, by `model_type`, and those of their arguments.
_OWN_CLASSES: Mapping[str, tuple[type[nn.Module], Any]] = {
    "gemma3": (Gemma3Model, gemma3.ModelArgs),
    "idefics3": (Idefics3Model, ModelArgs),
    "smolvlm": (Idefics3Model, ModelArgs),
}


@dataclass(frozen=True, slots=True)
class ModelDims:
    """Sizes of a model. `vocab` and `dtype` are its logits'; `intermediate` is the width of the
    feed-forward layers that one token passes."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    dtype: str


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model with its weights in memory. `fingerprint` covers weights, config and tokenizer.
    `drafter` is the other model of a pair. Of several `ranks` it is one rank's part."""

    model: nn.Module
    dims: ModelDims
    fingerprint: str
    weight_bytes: int
    verifies: DraftVerification = DraftVerification.ALWAYS
    drafter: "LoadedModel | None" = None
    vision: Vision | None = None
    why_no_vision: str = ""
    adapters: AdapterStore = field(default_factory=AdapterStore)
    ranks: Ranks = ALONE
    experts: DiskExperts | None = None

    @property
    def has_vision(self) -> bool:
        return self.vision is not None

    @property
    def target(self) -> nn.Module:
        return members(self.model)[0]

    @property
    def has_heads(self) -> bool:
        return isinstance(self.model, Headed)


def load(path: Path, notes: Path | None = None, scheme: Scheme | None = None) -> LoadedModel:
    """Load an MLX-layout directory, without running its code. Raises ModelUnavailable."""
    return finish(loading(path, notes, scheme))


def loading(
    path: Path,
    notes: Path | None = None,
    scheme: Scheme | None = None,
    known_as: str = "",
    *,
    heads: bool = False,
    vision: bool = False,
    on_disk: tuple[ExpertFiles, int] | None = None,
) -> Work[LoadedModel]:
    """Load as `load`, in slices. `known_as` is the fingerprint, if computed. A tower that can't
    be loaded leaves a warning. `on_disk`: the files whose experts stay there, and how many of each
    layer are in memory."""
    dispatch.install()
    model, config = yield from guarded_loading(path, opening(path))
    experts = guarded_load(path, lambda: leave_on_disk(model, *on_disk)) if on_disk else None
    dims = yield from reading_model(model, config, path, scheme)
    known_as = known_as or fingerprint(path, notes)
    verifies = verifies_drafts(model)
    tower, why_no_vision = (
        (yield from _loading_vision(model, config, path)) if vision else (None, "")
    )
    if heads:
        model, known_as = yield from _loading_heads(model, config, path, known_as)
    nbytes = weight_bytes(model) + (tower.weight_bytes if tower is not None else 0)
    return LoadedModel(
        model,
        dims,
        known_as,
        nbytes,
        verifies,
        vision=tower,
        why_no_vision=why_no_vision,
        experts=experts,
    )


def open_lazily(path: Path) -> nn.Module:
    """Open a model without reading its weights. Raises ModelUnavailable."""
    return guarded_load(path, lambda: open_model(path))[0]


def reading_model(
    model: nn.Module, config: dict[str, Any], path: Path, scheme: Scheme | None
) -> Work[ModelDims]:
    """Read an opened model's weights, and give it caches of `scheme`."""
    yield
    yield from reading(model, path)
    if scheme is not None:
        _log_quantised(scheme, use_scheme(model, scheme))
    else:
        _log_padded_caches(guarded_load(path, lambda: use_rows_of_own_length(model)))
    yield
    dims = guarded_load(path, lambda: read_dims(model, config))
    yield
    return dims


def _loading_vision(
    model: nn.Module, config: dict[str, Any], path: Path
) -> Work[tuple[Vision | None, str]]:
    """Return the model's vision, or None and why it has none."""
    family = family_of(config)
    if family is None:
        return None, "no vision tower is known for it"
    try:
        sections = family.sections(config)
        tower: Any = yield from loading_tower(family, config, path)
    except ModelUnavailable as error:
        _log.warning("%s sees no images: %s", path, error.message)
        return None, f"its vision tower can't be loaded: {error.message}"
    if sections is not None:
        use_axes(model, sections)
    return Vision(model, tower, family, config, weight_bytes(tower)), ""


def _loading_heads(
    model: nn.Module, config: dict[str, Any], path: Path, known_as: str
) -> Work[tuple[nn.Module, str]]:
    """Return the model with its heads, if they are known, and its fingerprint."""
    headed = guarded_load(path, lambda: with_heads(model, config, path))
    if headed is None:
        _log.warning("%s has no heads that predict further tokens, or none that are known", path)
        return model, known_as
    yield from reading(headed.heads, path)
    return headed, together_fingerprint(known_as, "heads")


def open_model(
    path: Path, tell: Callable[[Mapping[str, mx.array]], None] | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """Open a model with lazy arrays. `tell` receives those of its files, by name."""
    return finish(opening(path, tell))


def opening(
    path: Path, tell: Callable[[Mapping[str, mx.array]], None] | None = None
) -> Work[tuple[nn.Module, dict[str, Any]]]:
    """Open as `open_model`. A GGUF file is read, in slices."""

    def classes_of(config: dict[str, Any]) -> tuple[Callable[[Any], nn.Module], Any]:
        if quantization := own_quantization(config):
            config["quantization"] = quantization
        model_type = str(config.get("model_type"))
        make_model, args = _OWN_CLASSES.get(model_type) or _get_classes(config)
        return (make_model if tell is None else _telling_arrays(make_model, tell)), args

    if files := gguf_files(path):
        config = json.loads((path / "config.json").read_bytes())
        return (yield from loading_gguf(files, config, classes_of(config))), config
    try:
        with view_of(path) as view:
            opened: tuple[nn.Module, dict[str, Any]]
            opened = load_model(
                view, lazy=True, trust_remote_code=False, get_model_classes=classes_of
            )
    except SystemExit as error:  # mlx-lm's olmo exits without the package that it needs
        raise ImportError("its class in mlx-lm needs a package that is not installed") from error
    return opened


def _telling_arrays(
    make_model: Callable[[Any], nn.Module], tell: Callable[[Mapping[str, mx.array]], None]
) -> Callable[[Any], nn.Module]:
    """Wrap a class so that `tell` receives the arrays that mlx-lm sanitizes, once."""

    def make(args: Any) -> nn.Module:
        model: Any = make_model(args)
        sanitize = getattr(model, "sanitize", dict)

        def tell_and_sanitize(weights: Mapping[str, mx.array]) -> Any:
            del model.sanitize
            tell(weights)
            return sanitize(weights)

        model.sanitize = tell_and_sanitize
        return model  # type: ignore[no-any-return]

    return make


def _log_quantised(scheme: Scheme, caches: Quantised) -> None:
    if caches.plain:
        text = "%d KV caches are held as %s; %d stay as they are: %s"
        _log.warning(text, caches.quantised, scheme.name, caches.plain, caches.reason)
    else:
        _log.info("all %d KV caches are held as %s", caches.quantised, scheme.name)


def _log_padded_caches(caches: Quantised) -> None:
    if caches.plain:
        text = "rows of a batch are as long as the longest in %d KV caches of %d: %s"
        _log.info(text, caches.plain, caches.plain + caches.quantised, caches.reason)


def weight_bytes(model: nn.Module) -> int:
    leaves = dict(tree_flatten(model.parameters()))
    return sum(array.nbytes for array in leaves.values())


def read_dims(model: nn.Module, config: dict[str, Any]) -> ModelDims:
    """Return the sizes in config.json, and `vocab` and `dtype` of a forward."""
    text = {**config, **config.get("text_config", {})}
    hidden = _int(text, "hidden_size", "d_model", "hidden_dim", "model_dim", "n_embd", default=0)
    heads = _int(text, "num_attention_heads", "num_heads", "n_heads", "n_head", default=1)
    logits = model(mx.array([[0]]))
    return ModelDims(
        layers=_int(text, "num_hidden_layers", "num_layers", "n_layers", "n_layer", default=0),
        hidden=hidden,
        intermediate=_intermediate_of_a_token(text, hidden),
        heads=heads,
        kv_heads=_int(text, "num_key_value_heads", "num_kv_heads", default=heads),
        head_dim=_int(text, "head_dim", default=hidden // max(1, heads)),
        vocab=int(logits.shape[-1]),
        dtype=str(logits.dtype).removeprefix("mlx.core."),
    )


def _intermediate_of_a_token(text: dict[str, Any], hidden: int) -> int:
    """Return the width of the feed-forward layer, or of all experts that a token goes to."""
    dense = _int(text, "intermediate_size", default=4 * hidden)
    experts = _int(text, "num_experts_per_tok", "num_experts_per_token", "moe_topk", default=0)
    if experts == 0:
        return dense
    return experts * _int(text, "moe_intermediate_size", "expert_ffn_hidden_size", default=dense)


def _int(config: dict[str, Any], *names: str, default: int) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return default
