"""The families of models in README.md, docs/architectures.md and docs/cluster.md, from the table of
architectures that `scripts/campaign architectures` has tested."""

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

from scripts.reference import splits
from scripts.reference.markdown import table

_TABLE = Path(__file__).parent.parent.parent / "docs" / "architectures.md"
_ROW = re.compile(r"(?m)^\| ([\w.-]+)(?:\+\w+)? \| (yes|no)\b.*\|$")
_BEGIN = "<!-- families: made by scripts/docs reference -->"
_END = "<!-- end of families -->"
_WIDTH = 100
OTHERS = "others"
# What people call them -> how their types begin. The first that fits counts.
FAMILIES = {
    "Llama": ("llama",),
    "Qwen": ("qwen",),
    "Gemma": ("gemma", "recurrent_gemma"),
    "Mistral, Mixtral, Ministral": ("mistral", "mixtral", "ministral", "pixtral"),
    "gpt-oss": ("gpt_oss",),
    "DeepSeek": ("deepseek",),
    "GLM": ("glm",),
    "Kimi": ("kimi",),
    "MiniMax": ("minimax",),
    "Phi": ("phi",),
    "Granite": ("granite",),
    "Nemotron": ("nemotron",),
    "LFM2": ("lfm2",),
    "Command": ("cohere",),
    "Falcon": ("falcon",),
    "OLMo": ("olmo",),
    "EXAONE": ("exaone",),
    "Ernie": ("ernie",),
    "Hunyuan": ("hunyuan",),
    "MiMo": ("mimo",),
    "LongCat": ("longcat",),
    "Ling": ("bailing",),
    "InternLM": ("internlm",),
    "MiniCPM": ("minicpm",),
    "PLaMo": ("plamo",),
    "Seed-OSS": ("seed_oss",),
    "SmolLM": ("smollm",),
    "Jamba": ("jamba",),
    "Mamba": ("mamba",),
    "RWKV": ("rwkv",),
    "StarCoder": ("starcoder", "gpt_bigcode"),
    "GPT-2, GPT-J, GPT-NeoX": ("gpt",),
}


def by_family() -> dict[str, list[str]]:
    """The types that are served, by their family; those of no family are the others."""
    found: dict[str, list[str]] = {name: [] for name in (*FAMILIES, OTHERS)}
    for type_ in sorted(set(_types()), key=str.lower):
        found[_family_of(type_)].append(type_)
    return found


def in_a_line() -> str:
    """For the README."""
    types = by_family()
    names = ", ".join(name for name in types if name != OTHERS)
    count = sum(map(len, types.values()))
    rest = f"and {len(types[OTHERS])} others: {count} types of `config.json` in all."
    return fill(f"{names} {rest}", width=_WIDTH, break_on_hyphens=False)


def in_a_table() -> str:
    rows = ((name, ", ".join(f"`{t}`" for t in types)) for name, types in by_family().items())
    return table(("family", "`model_type` in `config.json`"), rows)


def pages() -> dict[str, str]:
    """What stands between the marks of each page, by its path."""
    return {
        "README.md": in_a_line(),
        "docs/architectures.md": in_a_table(),
        "docs/cluster.md": splits.in_a_table(tuple(_types())),
    }


def inserted(page: str, text: str) -> str:
    """The page with the text between its marks."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"the page has no {_BEGIN} with {_END} behind it")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def _types() -> Iterator[str]:
    return (match[1] for match in _ROW.finditer(_TABLE.read_text(encoding="utf-8")))


def _family_of(type_: str) -> str:
    begins = ((name, start) for name, starts in FAMILIES.items() for start in starts)
    return next((name for name, start in begins if type_.startswith(start)), OTHERS)
