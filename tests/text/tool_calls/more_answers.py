"""Well-formed answers of families that mlx-lm has no parser for."""

from tests.text.tool_calls.meanings import NESTED_TEXT, ROME, TWO, Answer, around

_OBJECT = '{{"name": "{}", "arguments": {}}}'
_PARAMETERS = '{{"name": "{}", "parameters": {}}}'
# Before the calls, behind them, and one call.
_LISTS = {
    "apertus": ("<|tools_prefix|>[", "]<|tools_suffix|>", '{{"{}": {}}}'),
    "cohere": (
        "<|START_ACTION|>[\n",
        "\n]<|END_ACTION|>",
        '{{"tool_call_id": "0", "tool_name": "{}", "parameters": {}}}',
    ),
    "command_r": ("Action:\n```json\n[", "]\n```", '{{"tool_name": "{}", "parameters": {}}}'),
    "firefunction": ("functools[", "]", _OBJECT),
    "gigachat": ("function call<|role_sep|>\n", "", _OBJECT),
    "gigachat3_1": ("<|function_call|>", "", _OBJECT),
    "granite": ("<|tool_call|>[", "]", _OBJECT),
    "internlm2": ("<|action_start|><|plugin|>\n", "\n<|action_end|>", _PARAMETERS),
    "llama3": ("<|python_tag|>", "", _PARAMETERS),
    "nemotron_nano": ("<TOOLCALL>[", "]</TOOLCALL>", _OBJECT),
    "tool_calls_list": ("<tool_calls>[", "]</tool_calls>", _OBJECT),
}
_HEADED = {
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
    ),
    "functionary": ("", "", "<function={}>{}</function>"),
    "solar": (
        "",
        "",
        "<|tool_call:begin|>a1<|tool_call:name|>{}<|tool_call:args|>{}<|tool_call:end|>",
    ),
}
_FENCED = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
    '```json\n{"city": "Rome"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)


def more_answers() -> list[Answer]:
    return [
        *(answer for family, shape in _LISTS.items() for answer in _written(family, *shape, ", ")),
        *(answer for family, shape in _HEADED.items() for answer in _written(family, *shape, "")),
        Answer("deepseek_v3", _FENCED, "", ROME),
        *_hy3(),
        *_minimax_m3(),
    ]


def _written(family: str, start: str, end: str, form: str, between: str) -> list[Answer]:
    def block(*calls: tuple[str, str]) -> str:
        return f"{start}{between.join(form.format(*call) for call in calls)}{end}"

    rome, koeln = ("get_weather", '{"city": "Rome"}'), ("get_weather", '{"city": "Köln 🌧"}')
    nested = ("get_weather", '{"city": "5", "days": 3, "spec": ' + NESTED_TEXT + "}")
    return [
        *around(family, block(rome), block(koeln), block(nested), block(("clock", "{}"))),
        Answer(family, block(rome, koeln), "", TWO),
    ]


def _hy3() -> list[Answer]:
    def tag(name: str, text: str) -> str:
        return f"<{name}:opensource>{text}</{name}:opensource>\n"

    def call(name: str, **arguments: str) -> str:
        pairs = "".join(
            tag("arg_key", key) + tag("arg_value", value) for key, value in arguments.items()
        )
        return tag("tool_call", f"{name}<tool_sep:opensource>\n{pairs}")

    def block(*calls: str) -> str:
        return tag("tool_calls", "\n" + "".join(calls)).rstrip()

    rome, koeln = call("get_weather", city="Rome"), call("get_weather", city="Köln 🌧")
    nested = call("get_weather", city="5", days="3", spec=NESTED_TEXT)
    blocks = block(rome), block(koeln), block(nested), block(call("clock"))
    return [*around("hy3", *blocks), Answer("hy3", block(rome, koeln), "", TWO)]


def _minimax_m3() -> list[Answer]:
    mark = "]<]minimax[>["

    def tag(name: str, text: str) -> str:
        return f"{mark}<{name}>{text}{mark}</{name}>"

    def call(name: str, **arguments: str) -> str:
        pairs = "".join(tag(key, value) for key, value in arguments.items())
        return f'{mark}<invoke name="{name}">{pairs}{mark}</invoke>\n'

    def block(*calls: str) -> str:
        return tag("tool_call", "\n" + "".join(calls))

    rome, koeln = call("get_weather", city="Rome"), call("get_weather", city="Köln 🌧")
    items = "".join(tag("item", value) for value in ("1", "null", "}"))
    nested = call("get_weather", city="5", days="3", spec=tag("a", tag("b", items)))
    blocks = block(rome), block(koeln), block(nested), block(call("clock"))
    return [*around("minimax_m3", *blocks), Answer("minimax_m3", block(rome, koeln), "", TWO)]
