"""Well-formed answers in each family's syntax, and what they mean."""

from dataclasses import dataclass
from typing import Any

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "spec": {"type": "object"},
            },
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS: list[dict[str, Any]] = [WEATHER, CLOCK]

Calls = list[tuple[str, dict[str, Any]]]

ROME: Calls = [("get_weather", {"city": "Rome"})]
TWO: Calls = [("get_weather", {"city": "Rome"}), ("get_weather", {"city": "Köln 🌧"})]
NESTED: Calls = [("get_weather", {"city": "5", "days": 3, "spec": {"a": {"b": [1, None, "}"]}}})]
EMPTY: Calls = [("clock", {})]


@dataclass(frozen=True, slots=True)
class Answer:
    family: str
    written: str
    text: str
    calls: Calls


def _json(start: str, end: str, family: str = "json_tools") -> list[Answer]:
    rome = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
    koeln = '{"arguments": {"city": "K\\u00f6ln \\ud83c\\udf27"}, "name": "get_weather"}'
    nested = (
        '{"name": "get_weather", "arguments": {"city": "5", "days": 3, '
        '"spec": {"a": {"b": [1, null, "}"]}}}}'
    )
    cases = [
        (f"{start}\n{rome}\n{end}", "", ROME),
        (f"Sure.\n{start}{rome}{end}\nDone.", "Sure.\nDone.", ROME),
        (f"\n\n{start}\n{rome}\n{end}\n{start}\n{koeln}\n{end}\n", "", TWO),
        (f"{start}{rome}{end}{start}{koeln}{end}", "", TWO),
        (f"\n\n{start}{rome}{end}Done.", "Done.", ROME),
        (f"{start}[{rome}, {koeln}]{end}", "", TWO),
        (f"{start}{rome}\n{koeln}{end}", "", TWO),
        (f"{start}{nested}{end}", "", NESTED),
        (f'{start}{{"name": "clock", "arguments": {{}}}}{end}', "", EMPTY),
        (f'{start}{{"name": "clock"}}{end}', "", EMPTY),
        (f'{start}{{"name": "clock", "arguments": null}}{end}', "", EMPTY),
        (
            start + '{"name": "get_weather", "arguments": "{\\"city\\": \\"Rome\\"}"}' + end,
            "",
            ROME,
        ),
        (
            start
            + '{"type": "function", "function": {"name": "get_weather", '
            + '"arguments": {"city": "Rome"}}}'
            + end,
            "",
            ROME,
        ),
        (
            start + '{"function": "get_weather", "parameters": {"city": "Rome"}}' + end,
            "",
            ROME,
        ),
        (
            start + '{"name": "other", "arguments": {"x": "</tool_call> \\"{"}}' + end,
            "",
            [("other", {"x": '</tool_call> "{'})],
        ),
    ]
    return [Answer(family, *case) for case in cases]


def _bare() -> list[Answer]:
    rome = '{"name": "get_weather", "parameters": {"city": "Rome"}}'
    answers = []
    for family in ("json_tools", "mistral", "pythonic"):
        cases: list[tuple[str, str, Calls]] = [
            (f"\n{rome}", "", ROME),
            (rome.replace('{"name', '{"type": "function", "name'), "", ROME),
            (f"{rome}; {rome}", "", ROME * 2),
            ('{"name": "Ada", "parameters": {}}', '{"name": "Ada", "parameters": {}}', []),
            ('{"name": "clock"}', '{"name": "clock"}', []),
            (f"See {rome}", f"See {rome}", []),
            ('{"a": 1}', '{"a": 1}', []),
        ]
        answers += [Answer(family, *case) for case in cases]
    return answers


def _mistral() -> list[Answer]:
    rome, koeln = 'get_weather[ARGS]{"city": "Rome"}', 'get_weather[ARGS]{"city": "Köln 🌧"}'
    listed = '{"name": "get_weather", "arguments": {"city": "Rome"}, "id": "abcdefghi"}'
    cases: list[tuple[str, str, Calls]] = [
        (f"[TOOL_CALLS]{rome}", "", ROME),
        (f"Sure.[TOOL_CALLS]{rome}[TOOL_CALLS]{koeln}", "Sure.", TWO),
        (f"[TOOL_CALLS]{rome}{koeln}", "", TWO),
        (f"[TOOL_CALLS] {rome}\nDone, all.", "Done, all.", ROME),
        ('[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "Rome"}', "", ROME),
        ('[TOOL_CALLS]get_weather{"city": "Rome"}', "", ROME),
        (f"[TOOL_CALLS] [{listed}]", "", ROME),
        (f"[TOOL_CALLS][{listed}, {listed}]\n", "", ROME * 2),
        ("[TOOL_CALLS]clock[ARGS]{}", "", EMPTY),
        (
            '[TOOL_CALLS]get_weather[ARGS]{"city": "5", "days": 3, '
            '"spec": {"a": {"b": [1, null, "}"]}}}',
            "",
            NESTED,
        ),
    ]
    return [Answer("mistral", *case) for case in cases]


def _kimi_k2() -> list[Answer]:
    def call(city: str, number: int) -> str:
        return (
            f"<|tool_call_begin|>functions.get_weather:{number}<|tool_call_argument_begin|>"
            f'{{"city": "{city}"}}<|tool_call_end|>'
        )

    start, end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    cases: list[tuple[str, str, Calls]] = [
        (f"{start}{call('Rome', 0)}{end}", "", ROME),
        (
            f"Sure. {start}\n{call('Rome', 0)}\n{call('Köln 🌧', 1)}\n{end} Done.",
            "Sure.  Done.",
            TWO,
        ),
        (f"{start}clock:0 <|tool_call_argument_begin|> {{}}<|tool_call_end|>{end}", "", EMPTY),
        (
            f"{start}<|tool_call_begin|>get_weather:0<|tool_call_argument_begin|>"
            '{"city": "5", "days": 3, "spec": {"a": {"b": [1, null, "}"]}}}'
            f"<|tool_call_end|>{end}",
            "",
            NESTED,
        ),
    ]
    return [Answer("kimi_k2", *case) for case in cases]


def _around(family: str, rome: str, koeln: str, nested: str, empty: str) -> list[Answer]:
    cases: list[tuple[str, str, Calls]] = [
        (rome, "", ROME),
        (f"Sure.\n{rome}\nDone.", "Sure.\nDone.", ROME),
        (f"\n{rome}\n{koeln}\n", "", TWO),
        (f"{rome}{koeln}", "", TWO),
    ]
    if nested:
        cases.append((nested, "", NESTED))
    if empty:
        cases.append((f"{empty} Now.", " Now.", EMPTY))
    return [Answer(family, *case) for case in cases]


_NESTED = '{"a": {"b": [1, null, "}"]}}'


def _glm(family: str, prefix: str = "") -> list[Answer]:
    def call(name: str, **arguments: str) -> str:
        pairs = "".join(
            f"<{prefix}arg_key>{key}</{prefix}arg_key>\n<{prefix}arg_value>{value}</{prefix}arg_value>\n"
            for key, value in arguments.items()
        )
        return f"<{prefix}tool_call>{name}\n{pairs}</{prefix}tool_call>"

    nested = call("get_weather", city="5", days="3", spec=_NESTED)
    empty = "" if prefix else "<tool_call>clock</tool_call>"
    rome, koeln = call("get_weather", city="Rome"), call("get_weather", city="Köln 🌧")
    return _around(family, rome, koeln, nested, empty)


def _gemma4() -> list[Answer]:
    def call(body: str) -> str:
        return f"<|tool_call>call:{body}<tool_call|>"

    both = 'call:get_weather{city:<|"|>Rome<|"|>}call:get_weather{city:<|"|>Köln 🌧<|"|>}'
    return [
        *_around(
            "gemma4",
            call('get_weather{city:<|"|>Rome<|"|>}'),
            call('get_weather{city:<|"|>Köln 🌧<|"|>}'),
            call(
                'get_weather{city:<|"|>5<|"|>,days:3,spec:{a:{b:[1,null,<|"|>}<|"|>]}}}',
            ),
            call("clock{}"),
        ),
        Answer("gemma4", f"<|tool_call>{both}<tool_call|>", "", TWO),
    ]


def _function_gemma() -> list[Answer]:
    def call(body: str) -> str:
        return f"<start_function_call>call:{body}<end_function_call>"

    return _around(
        "function_gemma",
        call("get_weather{city:<escape>Rome<escape>}"),
        call("get_weather{city:<escape>Köln 🌧<escape>}"),
        "",  # its parser knows no nesting
        call("clock{}"),
    )


def _kimi_k3() -> list[Answer]:
    def call(name: str, *arguments: tuple[str, str, str]) -> str:
        pairs = "".join(
            f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'
            for key, kind, value in arguments
        )
        return f'<|open|>call tool="{name}" index="1"<|sep|>{pairs}<|close|>call<|sep|>'

    def block(*calls: str) -> str:
        return f"<|open|>tools<|sep|>{''.join(calls)}<|close|>tools<|sep|>"

    rome = call("get_weather", ("city", "string", "Rome"))
    koeln = call("get_weather", ("city", "string", "Köln 🌧"))
    nested = call(
        "get_weather",
        ("city", "string", "5"),
        ("days", "number", "3"),
        ("spec", "object", _NESTED),
    )
    return [
        *_around("kimi_k3", block(rome), block(koeln), block(nested), block(call("clock"))),
        Answer("kimi_k3", block(rome, koeln), "", TWO),
    ]


def _minicpm5() -> list[Answer]:
    def call(name: str, **arguments: str) -> str:
        pairs = "".join(f'<param name="{key}">{value}</param>' for key, value in arguments.items())
        return f'<function name="{name}">{pairs}</function>'

    return _around(
        "minicpm5",
        call("get_weather", city="Rome"),
        call("get_weather", city="<![CDATA[Köln 🌧]]>"),
        call("get_weather", city="5", days="3", spec=_NESTED),
        call("clock"),
    )


def _invokes(family: str, outer: str, prefix: str, *, typed: bool) -> list[Answer]:
    def call(name: str, **arguments: str) -> str:
        pairs = "".join(
            f'<{prefix}parameter name="{key}">{value}</{prefix}parameter>\n'
            for key, value in arguments.items()
        )
        return f'<{prefix}invoke name="{name}">\n{pairs}</{prefix}invoke>\n'

    def block(*calls: str) -> str:
        return f"<{outer}>\n{''.join(calls)}</{outer}>"

    rome, koeln = call("get_weather", city="Rome"), call("get_weather", city="Köln 🌧")
    five = "5" if typed else '"5"'
    nested = call("get_weather", city=five, days="3", spec=_NESTED)
    return [
        *_around(family, block(rome), block(koeln), block(nested), block(call("clock"))),
        Answer(family, block(rome, koeln), "", TWO),
    ]


def _pythonic() -> list[Answer]:
    def block(calls: str) -> str:
        return f"<|tool_call_start|>[{calls}]<|tool_call_end|>"

    rome, koeln = 'get_weather(city="Rome")', "get_weather(city='Köln 🌧')"
    nested = f'get_weather(city="5", days=3, spec={_NESTED})'
    return [
        *_around("pythonic", block(rome), block(koeln), block(nested), block("clock()")),
        Answer("pythonic", block(f"{rome}, {koeln}"), "", TWO),
    ]


def _qwen3_coder() -> list[Answer]:
    def call(name: str, **arguments: str) -> str:
        pairs = "".join(
            f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()
        )
        return f"<function={name}>\n{pairs}</function>\n"

    def block(*calls: str) -> str:
        return f"<tool_call>\n{''.join(calls)}</tool_call>"

    rome, koeln = call("get_weather", city="Rome"), call("get_weather", city="Köln 🌧")
    marked = [("get_weather", {"city": "a </tool_call> </function> b"})]
    return [
        *_around(
            "qwen3_coder",
            block(rome),
            block(koeln),
            block(call("get_weather", city="5", days="3", spec=_NESTED)),
            block(call("clock")),
        ),
        Answer("qwen3_coder", block(rome, koeln), "", TWO),
        Answer(
            "qwen3_coder",
            block(call("get_weather", city="a </tool_call> </function> b")),
            "",
            marked,
        ),
        Answer(
            "qwen3_coder",
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>',
            "",
            ROME,
        ),
    ]


def _plain() -> list[Answer]:
    texts = (
        "Just text, 1 < 2.\n",
        "",
        " \n ",
        "The tag <tool_call> starts a call.",
        "[TOOL_CALLS] starts one.",
    )
    families = ("json_tools", "mistral", "qwen3_coder", "glm47", "pythonic")
    return [Answer(family, text, text, []) for family in families for text in texts]


ANSWERS: list[Answer] = [
    *_json("<tool_call>", "</tool_call>"),
    *_bare(),
    *_mistral(),
    *_kimi_k2(),
    *_function_gemma(),
    *_gemma4(),
    *_glm("glm47"),
    *_glm("laguna"),
    *_glm("longcat", "longcat_"),
    *_kimi_k3(),
    *_minicpm5(),
    *_invokes("minimax_m2", "minimax:tool_call", "", typed=True),
    *_invokes("muse_spark", "atem:function_calls", "atem:", typed=False),
    *_pythonic(),
    *_qwen3_coder(),
    *_plain(),
]
