"""Options of vLLM, llama-server and Ollama, and ours that do the same."""

from collections.abc import Iterable, Sequence
from itertools import takewhile

_KEY = (
    "Set the variable OMLX_AUTH__API_KEYS, or auth.api_keys in the config file: the list of "
    "processes shows options to everybody"
)
_CONTEXT = (
    "`omlx-server config set models.overrides.MODEL.context_length N` makes the context of a model "
    "shorter"
)
_NAME = "`omlx-server alias NEW MODEL` gives a model another name, which models.aliases keeps"
_ADAPTERS = (
    "`--adapter NAME` is the one of requests that name none; all that lie in the model's directory "
    "adapters/, or in adapters.directory, are served"
)
_MODEL = "The model is an argument: `omlx-server {command} MODEL`"
_MEMORY = "`--set memory.limit=48GB` is how much memory the server may take"
_LAYERS = "It is not needed: a GPU computes all layers"
_MACHINES = "`--hosts FILE` computes a model on several machines together"
_BATCH = "`--set scheduler.max_batch_size=N` is how many requests are computed at once"
OPTIONS = {
    "--api-key": _KEY,
    "--api-key-file": _KEY,
    "--max-model-len": _CONTEXT,
    "--ctx-size": _CONTEXT,
    "-c": _CONTEXT,
    "--num-ctx": _CONTEXT,
    "--served-model-name": _NAME,
    "--alias": _NAME,
    "-a": _NAME,
    "--lora-modules": _ADAPTERS,
    "--lora": _ADAPTERS,
    "--enable-lora": _ADAPTERS,
    "--model": _MODEL,
    "-m": _MODEL,
    "--gpu-memory-utilization": _MEMORY,
    "--n-gpu-layers": _LAYERS,
    "--gpu-layers": _LAYERS,
    "-ngl": _LAYERS,
    "--tensor-parallel-size": _MACHINES,
    "-tp": _MACHINES,
    "--parallel": _BATCH,
    "-np": _BATCH,
    "--max-num-seqs": _BATCH,
}
"""The advice for each; {command} stands for the called command."""


def answer_to(option: str, words: Sequence[str], command: str) -> str:
    """Return the error for an `option` of these; else "". The parser reports a word such as -ngl
    of `words` as option -n."""
    before_dashes = takewhile(lambda word: word != "--", words)
    typed: Iterable[str] = (
        word.partition("=")[0] for word in before_dashes if word.startswith(option)
    )
    name = next((word for word in (option, *typed) if word in OPTIONS), "")
    return f"No such option: {name}. {OPTIONS[name].format(command=command)}." if name else ""
