"""Requests with one long text each, for every place in which a request may hold a text: found in
the OpenAPI document, so that a new field is among them."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tests.api.routes import texts

Json = dict[str, Any]

DEEP = 900
"""Levels of a nested value; the parser takes a thousand."""
_ITEMS = 1000


def _address(size: int) -> bytes:
    """What a name of the hub may look like, and takes long to decode."""
    return b'"hf.co/' + b"%41" * (size // 3) + b'/b"'


def _escaped(size: int) -> bytes:
    return b'"' + b"\\u0041" * (size // 6) + b'"'


def _nested(size: int) -> bytes:
    return b"[" * DEEP + b'"' + b"a" * size + b'"' + b"]" * DEEP


def _listed(size: int) -> bytes:
    one = b'"' + b"a" * (size // _ITEMS) + b'"'
    return b'{"a": [' + b", ".join([one] * _ITEMS) + b"]}"


FORMS: Mapping[str, Callable[[int], bytes]] = {
    "address": _address,
    "escaped": _escaped,
    "nested": _nested,
    "listed": _listed,
}
"""JSON values of about so many bytes."""

# What makes a part of a body whole, by a field that is in it.
_KINDS = {
    "image_url": {"type": "image_url"},
    "source": {"type": "image"},
    "data": {"type": "base64"},
    "arguments": {"type": "function_call"},
    "call_id": {"type": "custom_tool_call"},
    "output": {"type": "function_call_output"},
    "summary": {"type": "reasoning"},
    "encrypted_content": {"type": "reasoning"},
    "thinking": {"type": "thinking"},
    "input": {"type": "tool_use", "name": "f", "id": "c"},
}


@dataclass(frozen=True, slots=True)
class LongText:
    """A request whose body has a long text. `place`: its route and the JSON before the text.
    `bound`: the most characters that the document allows; None for any number. `forms`: those that
    the place may take."""

    place: str
    method: str
    path: str
    document: bytes
    bound: int | None
    forms: tuple[str, ...]

    @property
    def field(self) -> str:
        """The name of the field that holds the text, or in which it is a key or deeper."""
        found: list[str] = re.findall(r'"([a-z]\w*)": ', self.place)
        return found[-1] if found else ""

    def body(self, form: str, size: int) -> bytes:
        return self.document.replace(b'"HERE"', FORMS[form](size))


def long_texts(described: Json, models: Mapping[str, str]) -> Iterator[LongText]:
    """One for each text of each body of an OpenAPI document. `models`: the model for a route, by
    the beginning of its path; the longest that fits counts."""
    defs = described["components"]["schemas"]
    for path, item in described["paths"].items():
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" not in content:
                continue
            model = models[max(filter(path.startswith, models), key=len)]
            for text, leaf in texts(content["application/json"]["schema"], defs):
                body = _whole(orjson.loads(text.replace("HERE", '"HERE"')), path, model)
                place = f"{path} {text.partition('HERE')[0]}"
                document, bound = orjson.dumps(body), leaf.get("maxLength")
                forms = ("address", "escaped") if "type" in leaf else tuple(FORMS)
                yield LongText(place, method.upper(), path, document, bound, forms)


def _whole(body: Json, path: str, model: str) -> Json:
    """The body with what else its route needs, so that it is not refused for another field."""
    parts = {key: _part(value) for key, value in body.items()}
    if "/admin/settings" in path:
        return parts
    given: Json = {"messages": [{"role": "user", "content": "Hi"}], "input": "Hi", "prompt": "Hi"}
    needed = _NEEDED.get(path, ())
    added = {name: given[name] for name in needed if not parts.keys() & _CONTENTS}
    return {"model": model, **added, **_short_answer(path, parts)}


def _short_answer(path: str, body: Json) -> Json:
    """The body, with the fewest tokens that its route takes for an answer."""
    if path.startswith("/api/"):
        return {**body, "options": {"num_predict": 1, **body.get("options", {})}}
    name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    return {name: 1, **body}


_CONTENTS = {"messages", "input", "prompt", "content"}
_NEEDED = {
    "/tokenize": ("prompt",),
    "/v1/responses": ("input",),
    "/v1/responses/compact": ("input",),
    "/v1/responses/input_tokens": ("input",),
    "/api/chat": ("messages",),
    "/api/generate": ("prompt",),
}


def _part(value: Any) -> Any:
    if isinstance(value, list):
        return [_part(one) for one in value]
    if not isinstance(value, dict):
        return value
    value = {key: _part(inner) for key, inner in value.items()}
    if "role" in value:
        return {"content": "Hi", **value}
    for name, fields in _KINDS.items():
        if name in value and "name" not in value.keys() - {"input", "arguments", "call_id"}:
            return {**value, **fields}
    return value
