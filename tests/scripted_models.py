"""Models that say a given text, made by mlx-lm's own class: so a real server gives answers that a
tiny model with random weights never would, as a call of one certain tool.

The tokenizer, the template, the layers, the cache and the sampling are real. Each piece of the text
is a token of its own; its embedding has one large number, and the row of the next piece in the last
matrix looks for that number. What a layer adds is a hundred times smaller. The chat template sees
by the messages which text is due, and ends the prompt with the token that begins that text.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import mlx.core as mx
import orjson
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.llama import Model, ModelArgs
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CALLS, ANSWERS, FAILS = "<|calls|>", "<|answers|>", "<|fails|>"
END = "<|im_end|>"
FAILED = "The tool did not give what was expected."
_SPECIALS = ("<|im_start|>", END, CALLS, ANSWERS, FAILS)
_BODY = 64  # the dimensions of tokens that are no pieces
_DOCS = Path(__file__).parent.parent / "docs"

# As Qwen's. A round of the tool is over when `expected` stands in what came after the last answer.
_TEMPLATE = """{%- if tools %}
    {{- '<|im_start|>system\n# Tools\n<tools>' }}
    {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\n</tools><|im_end|>\n' }}
{%- endif %}
{%- set seen = namespace(expected=false, tool=false) %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' %}
        {%- set seen.expected = false %}{%- set seen.tool = false %}
    {%- elif message.role == 'tool' %}
        {%- set seen.tool = true %}
        {%- set seen.expected = seen.expected or 'EXPECTED' in content %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + content }}
    {%- for tool_call in message.tool_calls or [] %}
        {%- set tool_call = tool_call.function or tool_call %}
        {{- '<tool_call>\n{"name": "' + tool_call.name + '", "arguments": ' }}
        {{- tool_call.arguments | tojson }}{{- '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {{- 'CALLS' if tools and not seen.tool else 'ANSWERS' if seen.expected or not tools }}
    {{- 'FAILS' if tools and seen.tool and not seen.expected }}
{%- endif %}
"""


def call_of(name: str, arguments: Mapping[str, object]) -> str:
    """The text of a tool call, as the template shows it."""
    body = orjson.dumps({"name": name, "arguments": arguments}).decode()
    return f"<tool_call>\n{body}\n</tool_call>"


def save_scripted(
    directory: Path, *, answer: str, call: str = "", expected: str = "", context: int = 1 << 16
) -> None:
    """Save a model whose context holds `context` tokens. It says `answer`; if a request has tools,
    it says `call` first, and `answer` when the text `expected` stands in what the tool gave."""
    scripts = {ANSWERS: answer, FAILS: FAILED, **({CALLS: call} if call else {})}
    seen: set[str] = set()
    pieces = {marker: list(_pieces(text, seen)) for marker, text in scripts.items()}
    backend = _tokenizer([piece for script in pieces.values() for piece in script])
    directory.mkdir(parents=True)
    backend.save(str(directory / "tokenizer.json"))
    template = _TEMPLATE.replace("EXPECTED", expected)
    for name, marker in (("CALLS", CALLS), ("ANSWERS", ANSWERS), ("FAILS", FAILS)):
        template = template.replace(name, marker)
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    (directory / "tokenizer_config.json").write_bytes(orjson.dumps(described))
    chains = [[marker, *script, END] for marker, script in pieces.items()]
    ids = backend.get_vocab()
    followers = {ids[one]: ids[then] for chain in chains for one, then in pairwise(chain)}
    _save_weights(directory, len(ids), followers, context)


def _pieces(text: str, seen: set[str]) -> Iterator[str]:
    """Cut the text into pieces of a few characters that are not in `seen`, and add them to it."""
    while text:
        size = 5
        while text[:size] in seen and size < len(text):
            size += 1
        assert text[:size] not in seen, f"{text!r} is a piece already"
        seen.add(text[:size])
        yield text[:size]
        text = text[size:]


def _tokenizer(pieces: Sequence[str]) -> Tokenizer:
    """A byte-level BPE of 8,000 tokens, which keeps agents' long prompts short."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (path.read_text(encoding="utf-8") for path in sorted(_DOCS.glob("*.md")))
    backend.train_from_iterator(texts, trainer)
    backend.add_special_tokens([AddedToken(text, special=True) for text in _SPECIALS])
    backend.add_tokens([AddedToken(text, normalized=False) for text in pieces])
    return backend


def _save_weights(directory: Path, vocab: int, followers: Mapping[int, int], context: int) -> None:
    hidden = _BODY + len(followers)
    hidden += -hidden % 64
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocab,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "max_position_embeddings": context,
    }
    mx.random.seed(7)
    model = Model(ModelArgs.from_dict(config))
    weights = dict(tree_flatten(model.parameters()))
    for name, array in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = array * 0.01
    columns = mx.arange(hidden) < _BODY
    rows = mx.random.normal((vocab, hidden)) * columns
    head = mx.random.normal((vocab, hidden)) * columns * 0.01
    for number, (token, follower) in enumerate(followers.items()):
        rows[token] = mx.zeros(hidden)
        rows[token, _BODY + number] = 10.0
        head[follower, _BODY + number] = 10.0
    weights |= {"model.embed_tokens.weight": rows, "lm_head.weight": head}
    model.update(tree_unflatten(list(weights.items())))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(directory / "model.safetensors"), weights, metadata={"format": "mlx"})
    (directory / "config.json").write_bytes(orjson.dumps(config))
