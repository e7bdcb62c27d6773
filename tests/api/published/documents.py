"""The published descriptions of the APIs, as JSON schemas that answers must fit: the packages leave
out which fields must be there. They come with llm-comply, which is pinned."""

import json
from functools import cache
from importlib import resources
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

Json = dict[str, Any]

OPENAI = "openai_chat.json"
ANTHROPIC = "anthropic.json"
OPEN_RESPONSES = "openresponses.json"
_BASE = "urn:document"


def fits(data: Any, document: str, schema: str) -> None:
    """Raises AssertionError with the first thing that does not."""
    error = best_match(_validator(document, schema).iter_errors(data))
    if error is not None:
        path = ".".join(map(str, error.absolute_path))
        raise AssertionError(f"{schema} of {document}: {path or 'the whole'}: {error.message}")


@cache
def _validator(document: str, schema: str) -> Draft202012Validator:
    return Draft202012Validator(
        {"$ref": f"{_BASE}#/components/schemas/{schema}"}, registry=_registry(document)
    )


@cache
def _registry(document: str) -> "Registry[Any]":
    file = resources.files("llm_comply.specs") / document
    content = _nullable(json.loads(file.read_text(encoding="utf-8")))
    schemas = content["components"]["schemas"]
    resource = Resource.from_contents(
        {"components": {"schemas": schemas}}, default_specification=DRAFT202012
    )
    registry: Registry[Any] = Registry()
    whole: Registry[Any] = registry.with_resource(_BASE, resource)
    return whole


def _nullable(node: Any) -> Any:
    """What OpenAPI 3.0 says of null in a word of its own, as a JSON schema. Where the values are
    listed, null must be among them, too."""
    if isinstance(node, list):
        return [_nullable(part) for part in node]
    if not isinstance(node, dict):
        return node
    made = {key: _nullable(part) for key, part in node.items() if key != "nullable"}
    may_be_null = node.get("nullable") is True and "enum" not in node
    return {"anyOf": [made, {"type": "null"}]} if may_be_null else made
