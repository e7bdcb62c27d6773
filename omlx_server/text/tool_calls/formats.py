"""The markup in which each family of models writes tool calls. core/model_files/parser_signs.py
maps chat templates to families."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import regex

from omlx_server.text.grammar.tools import CallSyntax
from omlx_server.text.tool_calls.json_calls import JsonShape
from omlx_server.text.tool_calls.literal_calls import LiteralShape, python_calls, quoted_call_parser
from omlx_server.text.tool_calls.tagged_body import TaggedShape

_NAME = r"[^\s<>{}()\[\]\"'=,;]{1,256}"


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The markup of one family of models."""

    name: str
    start: str  # the marker before a block of calls
    json: JsonShape  # the form of calls in JSON
    # the form of calls that are not in JSON, if any
    markup: TaggedShape | LiteralShape | None = None
    inner: tuple[str, ...] = ()  # texts within a call that can be control tokens
    others: tuple[str, ...] = ()  # other markers that begin a block of calls
    addressed: str = ""  # what stands before a block for the tool "{name}"
    beside: "CallFormat | None" = None  # a family whose calls are read as well

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.start, *self.others, *(self.beside.starts if self.beside else ()))

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts that can be control tokens."""
        of_markup = self.markup.markers if self.markup else ()
        of_beside = self.beside.markers if self.beside else ()
        markers = (*self.starts, *self.json.markers, *of_markup, *of_beside, self.addressed)
        return tuple(filter(None, (*markers, *self.inner)))


def _json_family(
    name: str,
    start: str,
    end: str = "",
    *,
    header: str = "",
    closers: tuple[str, ...] = (),
    others: tuple[str, ...] = (),
    inner: tuple[str, ...] = (),
    by_name: bool = False,
) -> CallFormat:
    pattern = regex.compile(rf"{header}(?=\{{)", regex.DOTALL) if header else None
    shape = JsonShape(end, (start, *others), closers, pattern, by_name)
    return CallFormat(name, start, shape, inner=inner, others=others)


def _tagged_family(
    name: str,
    start: str,
    end: str,
    call: str,
    key: str,
    value_end: str,
    *,
    call_end: str = "",
    newlines: bool = False,
    others: tuple[str, ...] = (),
    inner: tuple[str, ...] = (),
    mark: str = "",
) -> CallFormat:
    call_pattern, key_pattern = regex.compile(call), regex.compile(key)
    shape = TaggedShape(end, call_pattern, key_pattern, value_end, call_end, newlines, mark)
    return CallFormat(name, start, JsonShape(end, (start,)), shape, inner, others)


def _name_attribute(tag: str, key: str = "name", more: str = "") -> str:
    """Return a pattern of a tag whose name is the group `key`."""
    return rf'<{tag} name=["\']?(?P<{key}>[^"\'<>\n]{{1,256}})["\']?{more}\s*>'


def _glm_family(name: str, prefix: str = "", start: str = "tool_call") -> CallFormat:
    end, key = f"</{prefix}{start}>", f"{prefix}arg_key"
    return _tagged_family(
        name,
        f"<{prefix}{start}>",
        end,
        rf"(?P<name>{_NAME})\s*(?=<{key}>|{end})",
        rf"<{key}>\s*+(?P<key>[^<>]{{1,256}}?)\s*</{key}>(?:\\n|\s)*<{prefix}arg_value>",
        f"</{prefix}arg_value>",
        inner=(f"<{key}>", f"</{key}>", f"<{prefix}arg_value>"),
    )


def _function_tag_family(name: str, start: str, end: str, *, newlines: bool) -> CallFormat:
    return _tagged_family(
        name,
        start,
        end,
        rf"<function=\s*[\"']?(?P<name>{_NAME})[\"']?\s*>",
        r"<parameter=\s*[\"']?(?P<key>[^\"'<>\n]{1,256})[\"']?\s*>",
        "</parameter>",
        call_end="</function>",
        newlines=newlines,
        others=("<function=",),
    )


def _invoke_family(name: str, start: str, end: str, prefix: str = "", more: str = "") -> CallFormat:
    return _tagged_family(
        name,
        start,
        end,
        rf"(?:{start}\s*)?" + _name_attribute(f"{prefix}invoke"),
        _name_attribute(f"{prefix}parameter", "key", more),
        f"</{prefix}parameter>",
        call_end=f"</{prefix}invoke>",
    )


def _gemma_family(name: str, start: str, end: str, quote: str) -> CallFormat:
    shape = LiteralShape(end, "call:", quoted_call_parser(quote), quote)
    return CallFormat(name, start, JsonShape(end, (start,)), shape)


def _python_family(name: str, start: str, end: str) -> CallFormat:
    return CallFormat(name, start, JsonShape(end, (start,)), LiteralShape(end, "[", python_calls))


def _deepseek_family(name: str, block: str) -> CallFormat:
    mark = "｜DSML｜"
    kind = r'(?:\s+string="(?P<kind>true|false)")?'
    return _invoke_family(name, f"<{mark}{block}>", f"</{mark}{block}>", mark, kind)


_HY_SUFFIX = ":opensource"
_HY_TAGS = ("tool_call", "tool_sep", "arg_key", "/arg_key", "arg_value")
_M3_MARK = "]<]minimax[>["
_KIMI_CALL = "<|tool_call_begin|>"

JSON_TOOLS = _json_family("json_tools", "<tool_call>", "</tool_call>")

_FAMILIES = (
    JSON_TOOLS,
    _json_family("apertus", "<|tools_prefix|>", "<|tools_suffix|>", by_name=True),
    _json_family("command_r", "Action:\n```json\n", "```", others=("Action: ```json\n",)),
    _json_family("firefunction", "functools"),
    _json_family("cohere", "<|START_ACTION|>", "<|END_ACTION|>"),
    _json_family(
        "deepseek_v3",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        others=("<｜tool▁call▁begin｜>",),
        closers=("<｜tool▁call▁end｜>",),
        header=r"(?:function<｜tool▁sep｜>)?(?P<name>[^\s<{`]+)(?:<｜tool▁sep｜>)?\s*(?:```(?:json)?\s*)?",
        inner=("<｜tool▁sep｜>",),
    ),
    _deepseek_family("deepseek_v32", "function_calls"),
    _deepseek_family("deepseek_v4", "tool_calls"),
    _json_family(
        "functionary", "<function=", closers=("</function>",), header=rf"(?P<name>{_NAME})>\s*"
    ),
    _gemma_family("function_gemma", "<start_function_call>", "<end_function_call>", "<escape>"),
    _gemma_family("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>'),
    _json_family(
        "gigachat",
        "function call<|role_sep|>\n",
        others=("<|message_sep|>\n\nfunction call<|role_sep|>\n",),
    ),
    _json_family("gigachat3_1", "<|function_call|>"),
    _glm_family("glm47"),
    _json_family("granite", "<|tool_call|>", "<|/tool_call|>"),
    _tagged_family(
        "hy3",
        f"<tool_calls{_HY_SUFFIX}>",
        f"</tool_calls{_HY_SUFFIX}>",
        rf"<tool_call{_HY_SUFFIX}>\s*(?P<name>{_NAME})\s*<tool_sep{_HY_SUFFIX}>",
        rf"<arg_key{_HY_SUFFIX}>(?P<key>[^<>]{{1,256}})</arg_key{_HY_SUFFIX}>\s*<arg_value{_HY_SUFFIX}>",
        f"</arg_value{_HY_SUFFIX}>",
        call_end=f"</tool_call{_HY_SUFFIX}>",
        inner=tuple(f"<{name}{_HY_SUFFIX}>" for name in _HY_TAGS),
    ),
    _json_family("internlm2", "<|action_start|><|plugin|>", "<|action_end|>"),
    _json_family(
        "kimi_k2",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        closers=("<|tool_call_end|>",),
        others=(_KIMI_CALL,),
        header=r"(?:functions\.)?(?P<name>[^\s<|{]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*",
        inner=("<|tool_call_argument_begin|>",),
    ),
    _tagged_family(
        "kimi_k3",
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|>",
        r'<\|open\|>call tool="(?P<name>[^"<>]{1,256})"[^<>]{0,256}<\|sep\|>',
        r'<\|open\|>argument key="(?P<key>[^"]{1,256})"(?:\s+type="(?P<kind>\w+)")?\s*<\|sep\|>',
        "<|close|>argument<|sep|>",
        call_end="<|close|>call<|sep|>",
    ),
    _glm_family("laguna"),
    _json_family("llama3", "<|python_tag|>"),
    _python_family("llama4", "<|python_start|>", "<|python_end|>"),
    _glm_family("longcat", "longcat_"),
    _tagged_family(
        "minicpm5",
        "<function name=",
        "</function>",
        rf"[\"']?(?P<name>{_NAME})[\"']?\s*>",
        _name_attribute("param", "key"),
        "</param>",
    ),
    _tagged_family(
        "minimax_m3",
        f"{_M3_MARK}<tool_call>",
        f"{_M3_MARK}</tool_call>",
        regex.escape(_M3_MARK) + _name_attribute("invoke"),
        regex.escape(_M3_MARK) + r"<(?P<key>[^<>/]{1,256})>",
        f"{_M3_MARK}</{{key}}>",
        call_end=f"{_M3_MARK}</invoke>",
        mark=_M3_MARK,
    ),
    _invoke_family("minimax_m2", "<minimax:tool_call>", "</minimax:tool_call>"),
    _json_family(
        "mistral",
        "[TOOL_CALLS]",
        header=r"(?P<name>[\w.-]+)\s*(?:\[CALL_ID\]\s*[\w-]*\s*)?(?:\[ARGS\]\s*)?",
        inner=("[CALL_ID]", "[ARGS]"),
    ),
    replace(
        _invoke_family("muse_spark", "<atem:function_calls>", "</atem:function_calls>", "atem:"),
        addressed=" to={name}<|message|>",
    ),
    _json_family("nemotron_nano", "<TOOLCALL>", "</TOOLCALL>"),
    _python_family("pythonic", "<|tool_call_start|>", "<|tool_call_end|>"),
    _function_tag_family("qwen3_coder", "<tool_call>", "</tool_call>", newlines=True),
    _function_tag_family("seed_oss", "<seed:tool_call>", "</seed:tool_call>", newlines=False),
    _json_family(
        "solar",
        "<|tool_call:begin|>",
        closers=("<|tool_call:end|>",),
        header=r"[^\s<{]*<\|tool_call:name\|>(?P<name>[^\s<{]+)<\|tool_call:args\|>\s*",
        inner=("<|tool_call:name|>", "<|tool_call:args|>"),
    ),
    _json_family("tool_calls_list", "<tool_calls>", "</tool_calls>"),
)
FAMILIES: Mapping[str, CallFormat] = {family.name: family for family in _FAMILIES}


def json_syntax(family: CallFormat) -> CallSyntax:
    """Return how a JSON call is written behind the family's marker, if its parser reads that."""
    if family.name == JSON_TOOLS.name:
        return CallSyntax()
    syntax = CallSyntax(family.start, family.json.end, before="", after="", between="")
    return replace(syntax, head="{name}: ") if family.json.by_name else syntax
