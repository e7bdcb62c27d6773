"""The families of models that GGUF files hold: their config for mlx-lm, and names of tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from omlx_server.core.gguf import changes, configs, names
from omlx_server.core.gguf.changes import Change
from omlx_server.core.gguf.fields import FACTORS, Config, Factors, Fields
from omlx_server.core.gguf.head import GgufHead
from omlx_server.core.gguf.names import layer_of, parameter_name
from omlx_server.core.gguf.rope import rope_scaling

_SIGMOID = 2


@dataclass(frozen=True, slots=True)
class Family:
    """`more` adds to the config what is the family's own. `names` are layers' names that differ.
    `norm_offset` is what llama.cpp added to the weights of norms. `changes` undo what llama.cpp
    did to other tensors. `scales`: mlx-lm's class scales positions."""

    model_type: str
    more: Callable[[Fields], Config] = lambda fields: {}
    names: Mapping[str, str] = field(default_factory=dict)
    norm_offset: float = 0.0
    scales: bool = True
    changes: Mapping[str, Change] = field(default_factory=dict)

    def name_of(self, tensor: str) -> str:
        """Return the name of a tensor's parameter. Raises ValueError for one that is not known."""
        name = parameter_name(tensor, self.names)
        if name is None:
            raise ValueError(f"it has a tensor {tensor[:80]!r}, which is not known")
        return name

    def changed(self, tensor: str, array: Any, config: Config) -> Any:
        """Undo what llama.cpp did to a tensor. Takes an array of NumPy or MLX, and returns one."""
        inner = tensor.split(".", 2)[2] if tensor.startswith("blk.") else ""
        change = self.changes.get(inner.removesuffix(".weight").removesuffix(".bias"))
        return change(array, config) if change else array


def is_used(tensor: str, config: Config) -> bool:
    """Return whether a tensor is a parameter: not of the scaling of positions, nor of layers behind
    the last, which guess more tokens."""
    return tensor not in FACTORS and layer_of(tensor) < config["num_hidden_layers"]


def family_of(head: GgufHead) -> Family:
    """Raises ValueError for a file of a family that is not known."""
    fields = Fields(head, {})
    family = fields.architecture
    if family == "llama" and fields("expert_count", 0):
        family = "mixtral"
    if family == "deepseek2" and fields("expert_gating_func", 0) == _SIGMOID:
        family = "deepseek3"
    if family not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ValueError(f"its architecture is {family!r}; known are {known}")
    return FAMILIES[family]


def config_of(head: GgufHead, factors: Factors | None = None) -> Config:
    """Return config.json for mlx-lm. Raises ValueError for a file that lacks a field."""
    family, fields = family_of(head), Fields(head, factors or {})
    try:
        config = _config(family, fields)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError("its fields are not those of its architecture") from error
    if config["rope_scaling"] and not family.scales:
        raise ValueError("its positions are scaled, which mlx-lm's class does not do")
    return config


def _config(family: Family, fields: Fields) -> Config:
    hidden, heads = fields.size("embedding_length"), fields.size("attention.head_count")
    epsilon = "layer_norm_epsilon" if fields.has_field("attention.layer_norm_epsilon") else ""
    return {
        "model_type": family.model_type,
        "hidden_size": hidden,
        "num_hidden_layers": fields.size("block_count") - fields("nextn_predict_layers", 0),
        "intermediate_size": fields.size("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.size("attention.head_count_kv", heads),
        "head_dim": fields.size("attention.key_length", hidden // max(1, heads)),
        "dtype": "float32",
        "vocab_size": fields.vocabulary,
        "max_position_embeddings": fields.size("context_length"),
        "rms_norm_eps": fields.number(f"attention.{epsilon or 'layer_norm_rms_epsilon'}"),
        "rope_theta": fields.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": not fields.has("output.weight"),
        "attention_bias": fields.has("blk.0.attn_q.bias"),
        "mlp_bias": fields.has("blk.0.ffn_up.bias"),
        "rope_scaling": rope_scaling(fields),
        **family.more(fields),
    }


FAMILIES: Mapping[str, Family] = {  # by `general.architecture`, but for two that share one
    "llama": Family("llama", configs.llama, changes=changes.PERMUTED),
    "mixtral": Family(
        "mixtral", configs.local_experts, names.MIXTRAL, changes=changes.PERMUTED, scales=False
    ),
    "mistral3": Family("ministral3", configs.mistral3, changes=changes.PERMUTED),
    "minimax-m2": Family("minimax", configs.minimax, names.MINIMAX, scales=False),
    "qwen2": Family("qwen2"),
    "qwen2moe": Family(
        "qwen2_moe",
        configs.qwen2_mixture,
        names.QWEN2_MIXTURE,
        changes=changes.SHARED_GATE,
        scales=False,
    ),
    "qwen3": Family("qwen3"),
    "qwen3moe": Family("qwen3_moe", configs.qwen3_mixture, names.EXPERTS),
    "qwen35": Family("qwen3_5", configs.qwen35, names.QWEN35, changes=changes.QWEN35),
    "qwen35moe": Family(
        "qwen3_5_moe",
        configs.qwen35_mixture,
        names.QWEN35_MIXTURE,
        changes={**changes.QWEN35, **changes.SHARED_GATE},
    ),
    "qwen3next": Family(
        "qwen3_5_moe", configs.qwen35_mixture, names.QWEN3_NEXT, changes=changes.QWEN3_NEXT
    ),
    "gemma": Family("gemma", norm_offset=1.0, scales=False),
    "gemma2": Family("gemma2", configs.gemma2, names.NORMS_AROUND, norm_offset=1.0, scales=False),
    "gemma3": Family("gemma3_text", configs.gemma3, names.NORMS_AROUND, norm_offset=1.0),
    "gemma4": Family("gemma4_text", configs.gemma4, names.GEMMA4, scales=False),
    "gpt-oss": Family("gpt_oss", configs.gpt_oss, names.GPT_OSS),
    "granite": Family("granite", configs.granite, changes=changes.PERMUTED),
    "granitemoe": Family(
        "granitemoe", configs.granite_mixture, names.GRANITE_MIXTURE, changes=changes.PERMUTED
    ),
    "minicpm": Family("minicpm", configs.minicpm, changes=changes.PERMUTED),
    "phi3": Family("phi3", configs.phi3, names.PHI3),
    "smollm3": Family("smollm3", changes=changes.PERMUTED),
    "glm4": Family("glm4", configs.glm4, names.GLM4, scales=False),
    "glm4moe": Family("glm4_moe", configs.glm4_mixture, names.GLM4_MIXTURE, scales=False),
    "deepseek2": Family("deepseek_v2", configs.deepseek2, names.DEEPSEEK),
    "deepseek3": Family("deepseek_v3", configs.deepseek3, names.DEEPSEEK),
    "lfm2": Family(
        "lfm2", configs.lfm2, names.LFM2, changes=changes.SHORT_CONVOLUTION, scales=False
    ),
    "lfm2moe": Family(
        "lfm2_moe",
        configs.lfm2_mixture,
        names.LFM2_MIXTURE,
        changes=changes.SHORT_CONVOLUTION,
        scales=False,
    ),
    "olmo2": Family("olmo2", names=names.NORMS_AROUND),
    "exaone4": Family("exaone4", configs.exaone4, names.NORMS_AROUND),
    "starcoder2": Family("starcoder2", configs.starcoder2, names.STARCODER2, scales=False),
    "command-r": Family("cohere", configs.cohere, scales=False),
    "cohere2": Family("cohere2", configs.cohere2, scales=False),
    "nemotron": Family("nemotron", configs.nemotron, norm_offset=1.0),
    "ernie4_5": Family("ernie4_5", configs.ernie, scales=False),
    "hunyuan-dense": Family("hunyuan_v1_dense", configs.hunyuan, names.HUNYUAN),
    "seed_oss": Family("seed_oss", configs.seed_oss, names.NORM_BEHIND),
}
