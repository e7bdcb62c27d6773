"""Well-formed answers in each family's syntax, and what they mean."""

from tests.text.tool_calls.meanings import (
    EMPTY,
    NESTED,
    NESTED_TEXT,
    ROME,
    TWO,
    Answer,
    Calls,
    around,
)
from tests.text.tool_calls.more_answers import more_answers


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
            start
            + '{"name": "get_weather", "arguments": {"city": "Rome"}, "parameters": {"x": 1}}'
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
            (f"```json\n{rome}\n```", "", ROME),
            ('```json\n{"a": 1}\n```', '```json\n{"a": 1}\n```', []),
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
        (f"{call('Rome', 0)}{call('Köln 🌧', 1)} Done.", " Done.", TWO),
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


def _glm(family: str, prefix: str = "") -> list[Answer]:
    def call(name: str, **arguments: str) -> str:
        pairs = "".join(
            f"<{prefix}arg_key>{key}</{prefix}arg_key>\n<{prefix}arg_value>{value}</{prefix}arg_value>\n"
            for key, value in arguments.items()
        )
        return f"<{prefix}tool_call>{name}\n{pairs}</{prefix}tool_call>"

    nested = call("get_weather", city="5", days="3", spec=NESTED_TEXT)
    empty = "" if prefix else "<tool_call>clock</tool_call>"
    rome, koeln = call("get_weather", city="Rome"), call("get_weather", city="Köln 🌧")
    return around(family, rome, koeln, nested, empty)


def _gemma4() -> list[Answer]:
    def call(body: str) -> str:
        return f"<|tool_call>call:{body}<tool_call|>"

    both = 'call:get_weather{city:<|"|>Rome<|"|>}call:get_weather{city:<|"|>Köln 🌧<|"|>}'
    return [
        *around(
            "gemma4",
            call('get_weather{city:<|"|>Rome<|"|>}'),
            call('get_weather{city:<|"|>Köln 🌧<|"|>}'),
            call(
                'get_weather{city:<|"|>5<|"|>,days:3,spec:{a:{b:[1,null,<|"|>}<|"|>]}}}',
            ),
            call("clock{}"),
        ),
        Answer("gemma4", f"<|tool_call>{both}<tool_call|>", "", TWO),
        Answer(
            "gemma4",
            call('get-it{the-key:<|"|>a } <tool_call|><|"|>}'),
            "",
            [("get-it", {"the-key": "a } <tool_call|>"})],
        ),
    ]


def _function_gemma() -> list[Answer]:
    def call(body: str) -> str:
        return f"<start_function_call>call:{body}<end_function_call>"

    return around(
        "function_gemma",
        call("get_weather{city:<escape>Rome<escape>}"),
        call("get_weather{city:<escape>Köln 🌧<escape>}"),
        call("get_weather{city:<escape>5<escape>,days:3,spec:{a:{b:[1,null,<escape>}<escape>]}}}"),
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
        ("spec", "object", NESTED_TEXT),
    )
    return [
        *around("kimi_k3", block(rome), block(koeln), block(nested), block(call("clock"))),
        Answer("kimi_k3", block(rome, koeln), "", TWO),
    ]


def _minicpm5() -> list[Answer]:
    def call(name: str, **arguments: str) -> str:
        pairs = "".join(f'<param name="{key}">{value}</param>' for key, value in arguments.items())
        return f'<function name="{name}">{pairs}</function>'

    marked = "a</param></function> b"
    quoted = call("get_weather", city=f"<![CDATA[{marked}]]>")
    usual = around(
        "minicpm5",
        call("get_weather", city="Rome"),
        call("get_weather", city="<![CDATA[Köln 🌧]]>"),
        call("get_weather", city="5", days="3", spec=NESTED_TEXT),
        call("clock"),
    )
    return [*usual, Answer("minicpm5", quoted, "", [("get_weather", {"city": marked})])]


def _invokes(family: str, outer: str, prefix: str, kind: str = "") -> list[Answer]:
    """`kind`: what tells a string; other values have "false" in it for "true"."""

    def call(name: str, **arguments: str) -> str:
        pairs = "".join(
            f'<{prefix}parameter name="{key}"{kind if key == "city" else other}>'
            f"{value}</{prefix}parameter>\n"
            for key, value in arguments.items()
        )
        return f'<{prefix}invoke name="{name}">\n{pairs}</{prefix}invoke>\n'

    def block(*calls: str) -> str:
        return f"<{outer}>\n{''.join(calls)}</{outer}>"

    other = kind.replace("true", "false")
    rome, koeln = call("get_weather", city="Rome"), call("get_weather", city="Köln 🌧")
    nested = call("get_weather", city="5", days="3", spec=NESTED_TEXT)
    return [
        *around(family, block(rome), block(koeln), block(nested), block(call("clock"))),
        Answer(family, block(rome, koeln), "", TWO),
    ]


def _pythonic() -> list[Answer]:
    def block(calls: str) -> str:
        return f"<|tool_call_start|>[{calls}]<|tool_call_end|>"

    rome, koeln = 'get_weather(city="Rome")', "get_weather(city='Köln 🌧')"
    nested = f'get_weather(city="5", days=3, spec={NESTED_TEXT})'
    return [
        *around("pythonic", block(rome), block(koeln), block(nested), block("clock()")),
        Answer("pythonic", block(f"{rome}, {koeln}"), "", TWO),
        Answer("pythonic", block('get-it(the-key="a)")'), "", [("get-it", {"the-key": "a)"})]),
        Answer("pythonic", f"[{rome}, {koeln}]", "", TWO),
        Answer("pythonic", "[a link](http://x)", "[a link](http://x)", []),
    ]


def _llama4() -> list[Answer]:
    rome, koeln = 'get_weather(city="Rome")', "get_weather(city='Köln 🌧')"
    return [Answer("llama4", f"<|python_start|>[{rome}, {koeln}]<|python_end|>", "", TWO)]


def _function_tags(family: str, outer: str, line: str) -> list[Answer]:
    def call(name: str, **arguments: str) -> str:
        pairs = "".join(
            f"<parameter={key}>{line}{value}{line}</parameter>\n"
            for key, value in arguments.items()
        )
        return f"<function={name}>\n{pairs}</function>\n"

    def block(*calls: str) -> str:
        return f"<{outer}>\n{''.join(calls)}</{outer}>"

    rome, koeln = call("get_weather", city="Rome"), call("get_weather", city="Köln 🌧")
    quoted, spaced = f"a </{outer}> </function> </parameter> b", " a\n\n"
    object_ = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
    cases: list[tuple[str, str, Calls]] = [
        (block(rome, koeln), "", TWO),
        (block(call("get_weather", city=quoted)), "", [("get_weather", {"city": quoted})]),
        (block(call("get_weather", city=spaced)), "", [("get_weather", {"city": spaced})]),
        (f"Sure.\n{rome}{koeln}", "Sure.\n", TWO),
        (f"Sure.\n{rome}</{outer}>", "Sure.\n", ROME),
        (block(rome.replace("</parameter>\n", "")), "", ROME),
        (f"<{outer}>\n{object_}\n</{outer}>", "", ROME),
    ]
    nested, clock = call("get_weather", city="5", days="3", spec=NESTED_TEXT), call("clock")
    usual = around(family, block(rome), block(koeln), block(nested), block(clock))
    return usual + [Answer(family, *case) for case in cases]


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
    *_invokes("minimax_m2", "minimax:tool_call", ""),
    *_invokes("muse_spark", "atem:function_calls", "atem:"),
    *_invokes("deepseek_v32", "｜DSML｜function_calls", "｜DSML｜", ' string="true"'),
    *_invokes("deepseek_v4", "｜DSML｜tool_calls", "｜DSML｜", ' string="true"'),
    *_pythonic(),
    *_llama4(),
    *_function_tags("qwen3_coder", "tool_call", "\n"),
    *_function_tags("seed_oss", "seed:tool_call", ""),
    *_plain(),
    *more_answers(),
]
