"""The files that hold a model's weights. Pure."""

from collections.abc import Mapping
from typing import Any

INDEX = "model.safetensors.index.json"
"""The file that names the files of weights; if it exists, no others count."""
GGUF = "gguf"
"""The table of config.json about the file that a model's weights are read from."""
GGUF_LINKS = "omlx-*.gguf"
"""The links to a GGUF file's parts, in a directory that shows it."""
# Layouts of weights that mlx-lm neither reads nor converts.
_FOREIGN = frozenset(
    ("aqlm", "bitsandbytes", "eetq", "exl2", "exl3", "higgs", "hqq", "quanto", "spqr", "vptq")
)


def indexed(index: Any) -> list[str]:
    """Return the weight files in an index's JSON value. Raises ValueError where it names none."""
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not (isinstance(files, dict) and files):
        raise ValueError("its weight_map names no files")
    return sorted({str(name) for name in files.values()})


def quantization_of(config: Mapping[str, Any]) -> str:
    """Return the quantisation as people say it: "4-bit", "mxfp4", "8-bit fp8", "GGUF Q4_K"; ""
    for none."""
    if kind := _table(config, GGUF).get("type"):
        return f"GGUF {kind}"
    table = _table(config, "quantization") or _table(config, "quantization_config")
    bits = table.get("bits")
    is_number = isinstance(bits, int | float) and not isinstance(bits, bool)
    words = [f"{bits:g}-bit"] if is_number else []
    mode = table.get("quant_method") or table.get("mode")
    if isinstance(mode, str) and mode != "affine":
        words = [mode] if mode.endswith(tuple("0123456789")) else [*words, mode]
    return " ".join(words)


def gguf_bytes(config: Mapping[str, Any]) -> int:
    """Return the bytes of a GGUF file's tensors in MLX's form; 0 for another model."""
    return _gguf_number(config, "weight_bytes")


def types_again(config: Mapping[str, Any]) -> list[str]:
    """Return the types in a GGUF file whose values are quantised again, in 8 bits."""
    types = _table(config, GGUF).get("again")
    return [str(name) for name in types] if isinstance(types, list) else []


def gguf_parameters(config: Mapping[str, Any]) -> int:
    return _gguf_number(config, "parameters")


def _gguf_number(config: Mapping[str, Any], key: str) -> int:
    number = _table(config, GGUF).get(key)
    return number if isinstance(number, int) else 0


def own_quantization(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return MLX's table of the quantisation; empty for none."""
    copied = _table(config, "quantization_config")
    is_ours = "quant_method" not in copied and {"bits", "group_size"} <= copied.keys()
    return _table(config, "quantization") or (copied if is_ours else {})


def foreign_method(config: Mapping[str, Any]) -> str:
    if _table(config, "quantization"):
        return ""
    method = _table(config, "quantization_config").get("quant_method")
    return method if isinstance(method, str) and method.lower() in _FOREIGN else ""


def _table(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = config.get(key)
    if not isinstance(table, Mapping):
        text = config.get("text_config")
        table = text.get(key) if isinstance(text, Mapping) else None
    return table if isinstance(table, Mapping) else {}
