"""Whether an answer is what the document says. What is sent but not declared counts as wrong."""

import json
import re
from typing import Any
from urllib.parse import unquote

import httpx
from jsonschema import Draft202012Validator

Json = dict[str, Any]

_SCHEMAS = "#/components/schemas/"


def closed(document: Json) -> Json:
    """The document with answers that may hold nothing but what is declared."""
    document = json.loads(json.dumps(document))
    for name in answer_schemas(document):
        _close(document["components"]["schemas"][name])
    return document


def answer_schemas(document: Json) -> set[str]:
    """The names of all that answers are made of."""
    components = document["components"]
    answers = _reachable(components["responses"], components["schemas"])
    for item in document["paths"].values():
        for operation in item.values():
            answers |= _reachable(operation["responses"], components["schemas"])
    return answers


def _reachable(node: Any, schemas: Json) -> set[str]:
    """The names of all schemas that are used in it."""
    found: set[str] = set()
    new = _named(node)
    while new:
        found |= new
        new = {name for one in new for name in _named(schemas[one])} - found
    return found


def _named(node: Any) -> set[str]:
    return set(re.findall(rf'"{_SCHEMAS}(\w+)"', json.dumps(node)))


def _close(node: Any) -> None:
    if isinstance(node, dict):
        if "properties" in node:
            node.setdefault("additionalProperties", False)
        for value in node.values():
            _close(value)


class Judge:
    """`seen`: the operations, statuses and media types that were judged. `sent`: the fields that
    answers had, by the names of their schemas."""

    def __init__(self, document: Json) -> None:
        self.document = document
        self._closed = closed(document)
        self.seen: set[tuple[str, str, int, str]] = set()
        self.sent: set[str] = set()

    def judge(self, response: httpx.Response) -> None:
        """Raises AssertionError or ValidationError."""
        method, path = response.request.method.lower(), self._template(response.request)
        status, media = response.status_code, _media(response)
        declared = self._closed["paths"][path][method]["responses"]
        assert str(status) in declared, f"{method} {path} gave {status}: {response.text[:300]}"
        answer = self._resolved(declared[str(status)])
        self._judge_headers(response, answer.get("headers", {}))
        self.seen.add((method, path, status, media))
        assert media in answer["content"], f"{method} {path} gave {media}"
        self._judge_content(response, answer["content"][media])

    def _judge_headers(self, response: httpx.Response, headers: Json) -> None:
        for name, header in headers.items():
            assert name in response.headers or not header["required"], f"{name} is missing"
        own = {name for name in response.headers if name.startswith("x-omlx")}
        assert own <= {name.lower() for name in headers}

    def _judge_content(self, response: httpx.Response, content: Json) -> None:
        if _media(response) == "application/x-ndjson":
            for line in response.text.splitlines():
                self.validate(json.loads(line), content["itemSchema"])
        elif "itemSchema" in content:
            for event in events(response.text):
                self._judge_event(event, content["itemSchema"])
        elif "schema" in content:
            self.validate(response.json(), content["schema"])

    def _judge_event(self, event: Json, schema: Json) -> None:
        self.validate(event, {**schema, "additionalProperties": False})
        data = schema["properties"]["data"]
        if "anyOf" in data:
            done, data = data["anyOf"]
            if event["data"] == done["const"]:
                return
        told = json.loads(event["data"])
        assert "event" not in event or event["event"] == told["type"]
        self.validate(told, data["contentSchema"])

    def validate(self, value: Any, schema: Json) -> None:
        whole = {**schema, "components": self._closed["components"]}
        Draft202012Validator(whole).validate(value)
        self._note(value, schema)

    def declared(self, status: int) -> set[tuple[str, str, str]]:
        """Methods, paths and media types."""
        return {
            (method, path, media)
            for path, item in self._closed["paths"].items()
            for method, operation in item.items()
            if str(status) in operation["responses"]
            for media in operation["responses"][str(status)].get("content", [""])
        }

    def unsent(self) -> set[str]:
        """Fields that are declared for answers, and were in none."""
        schemas = self._closed["components"]["schemas"]
        declared = {
            f"{name}.{field}"
            for name in answer_schemas(self.document)
            for field in schemas[name].get("properties", ())
        }
        return declared - self.sent

    def _note(self, value: Any, schema: Json, name: str = "") -> None:
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            schema = self._closed["components"]["schemas"][name]
        for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
            whole = {**branch, "components": self._closed["components"]}
            if Draft202012Validator(whole).is_valid(value):
                self._note(value, branch)
        if isinstance(value, list):
            for item in value:
                self._note(item, schema.get("items", {}))
        elif isinstance(value, dict):
            for field, part in value.items():
                self.sent.add(f"{name}.{field}")
                self._note(part, schema.get("properties", {}).get(field, {}))

    def _resolved(self, node: Json) -> Json:
        if "$ref" in node:
            name = node["$ref"].rpartition("/")[2]
            found: Json = self._closed["components"]["responses"][name]
            return found
        return node

    def _template(self, request: httpx.Request) -> str:
        """The path as the document has it; what has fewest parameters goes first."""
        path = unquote(request.url.path)
        templates: list[str] = list(self._closed["paths"])
        for template in sorted(templates, key=lambda text: (text.count("{"), -len(text))):
            if re.fullmatch(re.sub(r"\\\{\w+\\\}", ".+?", re.escape(template)), path):
                return template
        raise AssertionError(f"{path} is not declared")


def _media(response: httpx.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0]


def events(text: str) -> list[Json]:
    """The fields of each server-sent event."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    return [dict(_field(line) for line in block.split("\n")) for block in blocks]


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(": ")
    return name, value
