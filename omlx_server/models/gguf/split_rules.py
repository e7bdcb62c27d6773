"""The rules by which tokenizers split texts, by llama.cpp's names. Each is a list of patterns: one
after the other splits the pieces that those before have left."""

from collections.abc import Mapping

_SHORT_FORMS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORDS = _SHORT_FORMS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s" + _SIGNS + _SPACES
_WITH_MARKS = (
    _SHORT_FORMS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    + _SPACES
)
_SEED = _WORDS.replace(_SIGNS, r"| ?[^\s\p{L}\p{N}\r\n]+") % ""
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _by_case(ending: str) -> str:
    start = r"[^\r\n\p{L}\p{N}]?"
    return f"{start}{_UPPER}*{_LOWER}+{ending}|{start}{_UPPER}+{_LOWER}*{ending}"


_AFTER_CASE = r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
_GPT_4O = _by_case(_SHORT_FORMS + "?") + _AFTER_CASE % "{1,3}"
_TEKKEN = _by_case("") + _AFTER_CASE % ""
_DEEPSEEK_3 = (
    r"\p{N}{1,3}",
    r"[一-龥\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _SPACES,
)
# Letters with cases, but for those that Unicode knows since not long, or outside of words.
_CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^"
    "\u10d0-\u10ff\u2d00-\u2d2d\ua790-\ua7fa\uab30-\uab68"
    "\U00010570-\U000105bc\U00016e40-\U00016e7f\U0001d400-\U0001d7cb\U0001df00-\U0001df1e]]"
)
_DEEPSEEK = (
    r"[\r\n]",
    rf"\s?{_CASED}+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-\x{d7ff}]+",
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-\x{d7ff}]+", r"\p{N}")
_DEFAULT = (r"[\p{P}$+<=>^~|]+", _GPT_2, r"\p{N}+", "[0-9][0-9][0-9]")
WHOLE_WORDS_FIRST = (
    *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    "tekken",
)
RULES: Mapping[str, tuple[str, ...]] = {
    "default": _DEFAULT,
    **dict.fromkeys(("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4"), (_GPT_2,)),
    **dict.fromkeys(("olmo", "mpt", "trillion", "granite-docling"), (_GPT_2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), (r"\p{N}", _GPT_2)),
    **dict.fromkeys(("exaone", "codeshell", "minerva-7b"), (r"\p{N}", _GPT_2)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2"), (_WORDS % "",)),
    **dict.fromkeys(("hunyuan", "solar-open", "grok-2"), (_WORDS % "",)),
    **dict.fromkeys(WHOLE_WORDS_FIRST[:-1], (_WORDS % "{1,3}",)),
    **dict.fromkeys(("glm4", "chatglm-bpe", "dbrx", "smaug-bpe"), (_WORDS % "{1,3}",)),
    "qwen35": (_WITH_MARKS,),
    "seed-coder": (_SEED,),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), (_GPT_4O,)),
    "tekken": (_TEKKEN,),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK_3),
    "deepseek-llm": _DEEPSEEK,
    "deepseek-coder": _DEEPSEEK_CODER,
}
