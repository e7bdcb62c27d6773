"""Every route that there is and every body that one takes, found in the code, so that a new one is
tested without being named here."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import orjson
from fastapi import APIRouter
from fastapi.routing import APIRoute

from omlx_server import api
from omlx_server.api.app import create_app
from omlx_server.api.http.json_body import StrictModel
from omlx_server.settings import Settings
from omlx_server.wiring.context import make_context
from tests.api.fixed import fixed_models

Node = dict[str, Any]

# What stands for a path's parameter.
_PARAMETERS = {"{name:path}": "tiny", "{id}": "no-such-pin", "{path:path}": "index.html"}
ENDLESS = ("GET", "/admin/live")
"""Answers with a stream that does not end by itself."""
# Values that mean something, where the first one of the right type would not.
_KNOWN = {"model": "tiny", "role": "user", "content": "Hi", "max_tokens": 1, "type": "text"}
_DEEP = 6


def modules() -> list[Any]:
    found = pkgutil.walk_packages(api.__path__, "omlx_server.api.")
    return [importlib.import_module(module.name) for module in found]


def routes() -> list[tuple[str, str]]:
    """Method and path, parameters filled in."""
    found = {("GET", "/openapi.json")}
    for module in modules():
        router = getattr(module, "router", None)
        if isinstance(router, APIRouter):
            for route in router.routes:
                assert isinstance(route, APIRoute)
                path = route.path
                for parameter, value in _PARAMETERS.items():
                    path = path.replace(parameter, value)
                assert "{" not in path, f"say in _PARAMETERS what stands for {route.path}"
                found |= {(method, path) for method in route.methods or ()}
    return sorted(found)


def bodies() -> list[type[StrictModel]]:
    """All models of request bodies and of parts of them."""
    modules()
    found: set[type[StrictModel]] = set()
    new = {StrictModel}
    while new:
        new = {child for kind in new for child in kind.__subclasses__()} - found
        found |= new
    own = [kind for kind in found if kind.__module__.startswith("omlx_server.")]
    return sorted(own, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}")


@cache
def described() -> Node:
    """The OpenAPI description of the app."""
    return create_app(make_context(fixed_models(), Settings())).openapi()


def body_for(path: str) -> dict[str, Any]:
    """One that the route takes, or nearly."""
    operation = described()["paths"].get(path, {}).get("post", {})
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" not in content:
        return {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    defs = described()["components"]["schemas"]
    schema = _resolved(content["application/json"]["schema"], defs)
    body: dict[str, Any] = least(schema, defs)
    if "num_predict" in str(defs.get("Options")) and "keep_alive" in schema["properties"]:
        body["options"] = {"num_predict": 1}
    return body | ({"max_tokens": 1} if "max_tokens" in schema["properties"] else {})


# -- documents out of a JSON schema --------------------------------------------------------------


def least(node: Node, defs: Node, name: str = "") -> Any:
    """The smallest value that fits, near enough."""
    node = _resolved(node, defs)
    if "enum" in node or "const" in node:
        values = node.get("enum", [node.get("const")])
        return _KNOWN[name] if _KNOWN.get(name) in values else values[0]
    if name in _KNOWN and name != "max_tokens":
        return _KNOWN[name]
    for branches in ("anyOf", "oneOf"):
        if branches in node:
            return least(node[branches][0], defs, name)
    match node.get("type"):
        case "object":
            if isinstance(node.get("additionalProperties"), dict):
                return {"5": least(node["additionalProperties"], defs)}
            known, needed = node.get("properties", {}), node.get("required", [])
            return {key: least(known[key], defs, key) for key in known if key in needed}
        case "array":
            return [least(node["items"], defs, name)] * node.get("minItems", 1)
        case "integer" | "number":
            return good(node)
        case "boolean":
            return True
        case _:
            return "x" * max(1, node.get("minLength", 1))


def good(node: Node) -> int:
    """A number that fits."""
    lowest = int(node.get("minimum") or node.get("exclusiveMinimum") or 0)
    return max(1, lowest) if node.get("maximum", 1) >= 1 else lowest


def numbers(node: Node, defs: Node) -> Iterator[tuple[str, Node]]:
    """For each place of a number: a document with the word HERE at that place, and its schema."""
    return places(node, defs, lambda leaf: leaf.get("type") in ("integer", "number"), _DEEP)


def texts(node: Node, defs: Node) -> Iterator[tuple[str, Node]]:
    """As `numbers`, for each place where any text may stand, be it as a key or in any JSON."""
    return places(node, defs, _takes_texts, 2 * _DEEP)


def _takes_texts(leaf: Node) -> bool:
    is_any = not leaf.keys() & {"type", "anyOf", "oneOf", "enum", "const"}
    return is_any or (leaf.get("type") == "string" and not leaf.keys() & {"enum", "const"})


def places(
    node: Node, defs: Node, fits: Callable[[Node], bool], deep: int
) -> Iterator[tuple[str, Node]]:
    """For each place of a value whose schema `fits`: a document with the word HERE there, and that
    schema."""
    node = _resolved(node, defs)
    if deep == 0:
        return
    if fits(node):
        yield "HERE", node
    for part in (*node.get("anyOf", []), *node.get("oneOf", [])):
        yield from places(part, defs, fits, deep - 1)
    if "items" in node:
        for text, leaf in places(node["items"], defs, fits, deep - 1):
            yield f"[{text}]", leaf
    if (others := node.get("additionalProperties")) not in (None, False):
        others = {} if others is True else others
        key = {"type": "string", **node.get("propertyNames", {})}
        if fits(key):
            yield f"{{HERE: {orjson.dumps(least(others, defs)).decode()}}}", key
        for text, leaf in places(others, defs, fits, deep - 1):
            yield f'{{"5": {text}}}', leaf
    for name, part in node.get("properties", {}).items():
        for text, leaf in places(part, defs, fits, deep - 1):
            yield _with(node, defs, name, text), leaf


def _with(node: Node, defs: Node, name: str, text: str) -> str:
    """An object in which one property has the JSON `text`."""
    others = {key: value for key, value in least(node, defs).items() if key != name}
    pairs = [f'"{name}": {text}', *(orjson.dumps({k: v}).decode()[1:-1] for k, v in others.items())]
    return "{" + ", ".join(pairs) + "}"


def _resolved(node: Node, defs: Node) -> Node:
    while "$ref" in node:
        node = defs[node["$ref"].rpartition("/")[2]]
    return node
