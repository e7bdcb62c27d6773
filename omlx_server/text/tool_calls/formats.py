"""The markup in which each family of models writes tool calls, and mlx-lm's parser for it. Pure.

The one file that knows mlx-lm's parsers. They read one complete call; `MarkupBody` and `JsonBody`
make streams of them. core/model_files/parser_signs.py says which chat template asks for which.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_lm.tool_parsers import (
    function_gemma,
    gemma4,
    glm47,
    kimi_k3,
    longcat,
    minicpm5,
    minimax_m2,
    muse_spark,
    pythonic,
    qwen3_coder,
)

from omlx_server.core.crash import Crash, guarded
from omlx_server.text.encoding.utf8 import whole
from omlx_server.text.grammar.tools import CallSyntax
from omlx_server.text.tool_calls.json_body import Header, JsonShape
from omlx_server.text.tool_calls.markup_body import MarkupShape, ParsedCall, Verdict
from omlx_server.text.tool_calls.plain_json import dumped

# The parsers search with expressions that take the square of the length in the worst case.
_MAX_CHARS = 2_000_000
_MAX_HEAD_CHARS = 256
_MAX_DEPTH = 100
_GEMMA4_BRACE = re.compile(r'<\|"\|>.*?<\|"\|>|[{}]', re.DOTALL)
_NAME = re.compile(r"[^\s<>{}()\[\]\"'=,;]{1,256}")
_HEAD_BEGUN = re.compile(r"[\"']?[\w.:/-]*[\"']?\s*")
_HEAD = re.compile(r"([\"']?)[\w.:/-]+\1\s*")


@dataclass(frozen=True, slots=True)
class Family:
    """How one family of models writes calls. `start`: the marker before calls. `json`: the form of
    calls in JSON. `markup`: the form of calls in markup, None without one; a family with markup can
    have calls in JSON, too, as some models write when they slip. `inner`: texts within a call that
    can be control tokens."""

    name: str
    start: str
    json: JsonShape
    markup: MarkupShape | None = None
    inner: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """Every text that may be written with control tokens."""
        markup = self.markup
        more = (markup.end, markup.call_end, *(markup.item or ())) if markup else ()
        return tuple(filter(None, (self.start, *self.json.markers, *more, *self.inner)))


def _never_raising(
    parse: Callable[[str, Any], Any],
) -> Callable[[str, Sequence[Mapping[str, Any]]], list[ParsedCall]]:
    def parsed(text: str, tools: Sequence[Mapping[str, Any]]) -> list[ParsedCall]:
        found = parse(text, list(tools))
        return [_checked(call) for call in (found if isinstance(found, list) else [found])]

    def calls_in(text: str, tools: Sequence[Mapping[str, Any]]) -> list[ParsedCall]:
        """None of what no parser understands: they raise almost anything on such a text."""
        calls = guarded(parsed, text, tools) if len(text) <= _MAX_CHARS else []
        return [] if isinstance(calls, Crash) else calls

    return calls_in


def _checked(call: Any) -> ParsedCall:
    """Raises for what has no name or whose arguments are no object, or can't be JSON."""
    name, arguments = call["name"], call.get("arguments", {})
    if not isinstance(arguments, dict) or not _NAME.fullmatch(name):
        raise ValueError("not a tool call")
    return ParsedCall(name, {whole(str(key)): dumped(value) for key, value in arguments.items()})


def _parse_glm(text: str, tools: Any) -> Any:
    """Without its own refuge: any text is a call "unknown", or of its first word."""
    call = glm47.parse_tool_call(text, tools)
    if call["arguments"].keys() == {"raw"} and "<arg_key>" not in text:
        raise ValueError("not a tool call")
    return call


def _parse_function_gemma(text: str, tools: Any) -> Any:
    """It reads the first call only, yet searches for more: in the square of the length."""
    end = text.index("}", text.index("call:")) + 1
    return function_gemma.parse_tool_call(text[:end], tools)


def _parse_gemma4(text: str, tools: Any) -> Any:
    """Its expression takes the square of the length, and more, where braces don't match."""
    depth = 0
    for brace in _GEMMA4_BRACE.findall(text):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth not in range(_MAX_DEPTH):
            raise ValueError("not a tool call")
    if depth or text.count('<|"|>') % 2:
        raise ValueError("not a tool call")
    return gemma4.parse_tool_call(text, tools)


def _literally(literal: str) -> Callable[[str], Verdict]:
    def opens(text: str) -> Verdict:
        return text.startswith(literal) or (None if literal.startswith(text) else False)

    return opens


def _name_then(followers: str) -> Callable[[str], Verdict]:
    """A name, perhaps in quotes, then one of the characters `followers`."""

    def opens(text: str) -> Verdict:
        begun = _HEAD_BEGUN.match(text)
        end = begun.end() if begun else 0
        if end == len(text) < _MAX_HEAD_CHARS:
            return None
        return text[end : end + 1] in tuple(followers) and bool(_HEAD.fullmatch(text[:end]))

    return opens


def _markup(
    name: str,
    module: Any,
    opens: Callable[[str], Verdict],
    *,
    item: tuple[str, str] | None = None,
    call_end: str = "",
    parse: Callable[[str, Any], Any] | None = None,
    inner: tuple[str, ...] = (),
) -> Family:
    start, end = module.tool_call_start, module.tool_call_end
    calls_in = _never_raising(parse or module.parse_tool_call)
    shape = MarkupShape(end, start, opens, calls_in, item, call_end)
    return Family(name, start, JsonShape(end, (start,)), shape, inner)


_GLM_ITEM = ("<arg_key>", "</arg_value>")

JSON_TOOLS = Family("json_tools", "<tool_call>", JsonShape("</tool_call>", ("<tool_call>",)))

_MISTRAL = Family(
    "mistral",
    "[TOOL_CALLS]",
    JsonShape(
        separators=("[TOOL_CALLS]",),
        header=Header(
            whole=re.compile(
                r"(?P<name>[\w.-]+)\s*(?:\[CALL_ID\]\s*[\w-]*\s*)?(?:\[ARGS\]\s*)?", re.DOTALL
            ),
            begun=re.compile(r"[\w.-]+\s*(?:\[[A-Z_]*(?:\]\s*[\w-]*\s*(?:\[[A-Z]*\]?\s*)?)?)?"),
        ),
    ),
    inner=("[CALL_ID]", "[ARGS]"),
)

_KIMI_K2 = Family(
    "kimi_k2",
    "<|tool_calls_section_begin|>",
    JsonShape(
        end="<|tool_calls_section_end|>",
        separators=("<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_calls_section_begin|>"),
        header=Header(
            whole=re.compile(
                r"(?:functions\.)?(?P<name>[^\s<|{]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*"
            ),
            begun=re.compile(r"[^\s<|{}\[\],;]+\s*(?:<(?:\|[\w]*(?:\|(?:>\s*)?)?)?)?"),
        ),
    ),
    inner=("<|tool_call_argument_begin|>",),
)

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        JSON_TOOLS,
        _MISTRAL,
        _KIMI_K2,
        _markup(
            "function_gemma",
            function_gemma,
            _literally("call:"),
            parse=_parse_function_gemma,
            inner=("<escape>",),
        ),
        _markup("gemma4", gemma4, _literally("call:"), parse=_parse_gemma4, inner=('<|"|>',)),
        _markup("glm47", glm47, _name_then("<{"), item=_GLM_ITEM, parse=_parse_glm),
        _markup("laguna", glm47, _name_then("<{"), item=_GLM_ITEM, parse=_parse_glm),
        _markup(
            "kimi_k3",
            kimi_k3,
            _literally("<|open|>call"),
            item=("<|open|>argument", "<|close|>argument<|sep|>"),
            call_end="<|close|>call<|sep|>",
        ),
        _markup(
            "longcat",
            longcat,
            _name_then("<{"),
            item=("<longcat_arg_key>", "</longcat_arg_value>"),
        ),
        _markup("minicpm5", minicpm5, _name_then(">"), item=("<param name=", "</param>")),
        _markup(
            "minimax_m2",
            minimax_m2,
            _literally("<invoke name="),
            item=("<parameter name=", "</parameter>"),
            call_end="</invoke>",
        ),
        _markup(
            "muse_spark",
            muse_spark,
            _literally("<atem:invoke"),
            item=("<atem:parameter", "</atem:parameter>"),
            call_end="</atem:invoke>",
        ),
        _markup("pythonic", pythonic, _literally("[")),
        _markup(
            "qwen3_coder",
            qwen3_coder,
            _literally("<function="),
            item=("<parameter=", "</parameter>"),
            call_end="</function>",
        ),
    )
}


def json_syntax(family: Family) -> CallSyntax:
    """How a call in JSON is written behind the family's own marker, where its parser reads that,
    too."""
    if family is JSON_TOOLS:
        return CallSyntax()
    return CallSyntax(family.start, family.json.end, before="", after="", between="")
