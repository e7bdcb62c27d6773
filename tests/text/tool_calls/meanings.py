"""What the answers of the tests mean, in whatever syntax they are written."""

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


def around(family: str, rome: str, koeln: str, nested: str, empty: str) -> list[Answer]:
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


NESTED_TEXT = '{"a": {"b": [1, null, "}"]}}'
