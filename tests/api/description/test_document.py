"""The document as such: complete, without loose ends, and free until somebody asks for it."""

import json
import re
from typing import Any

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel

from omlx_server.api.app import create_app
from omlx_server.api.description.document import Schemas, document
from omlx_server.api.description.operation import Operation
from omlx_server.settings import Settings
from omlx_server.wiring.context import make_context
from tests.api.fixed import fixed_models

Json = dict[str, Any]


def made(*keys: str) -> Json:
    settings = Settings.of({"auth": {"api_keys": keys}})
    return create_app(make_context(fixed_models(), settings)).openapi()


@pytest.fixture(scope="module")
def whole() -> Json:
    return made("a-key-of-the-tests")


def operations(whole: Json) -> list[Json]:
    return [operation for item in whole["paths"].values() for operation in item.values()]


def test_every_reference_leads_somewhere_and_everything_is_referred_to(whole: Json) -> None:
    text = json.dumps(whole)
    found = set(re.findall(r'"#/components/(\w+)/(\w+)"', text))
    kinds = ("schemas", "responses")
    assert found == {(kind, name) for kind in kinds for name in whole["components"][kind]}
    assert "$defs" not in text


def test_operations_have_names_of_their_own_and_say_what_they_do(whole: Json) -> None:
    names = [operation["operationId"] for operation in operations(whole)]
    assert len(names) == len(set(names)) > 30
    assert all(operation["summary"] for operation in operations(whole))


def test_a_key_is_needed_where_there_are_keys(whole: Json) -> None:
    wants = {"security" in operation for operation in whole["paths"]["/health"].values()}
    assert wants == {False}
    assert "401" not in whole["paths"]["/health"]["get"]["responses"]
    chat = whole["paths"]["/v1/chat/completions"]["post"]
    assert chat["security"] == [{"bearer": []}, {"x-api-key": []}]
    assert not any("security" in operation for operation in operations(made()))


def test_what_is_optional_in_a_body_may_be_null(whole: Json) -> None:
    fields = whole["components"]["schemas"]["EmbeddingRequest"]["properties"]
    assert {"type": "null"} in fields["encoding_format"]["anyOf"]
    assert {"type": "null"} not in fields["input"]["anyOf"]


def test_a_route_that_says_nothing_is_found() -> None:
    router = APIRouter()
    router.get("/x")(lambda: None)
    with pytest.raises(KeyError):
        document(
            [route for route in router.routes if isinstance(route, APIRoute)], keys_needed=False
        )


def _tool(module: str) -> type[BaseModel]:
    return type("Tool", (BaseModel,), {"__module__": module, "__doc__": module})


def test_two_of_one_name_are_told_apart() -> None:
    schemas = Schemas([_tool("a.openai.schema"), _tool("a.anthropic.request")])
    assert len(schemas.components) == 2


def test_describing_a_route_makes_no_schema() -> None:
    """The types are looked at when somebody asks for the document."""
    extra = Operation("Tag", "a type that can't be described").extra
    router = APIRouter()
    router.get("/x", openapi_extra=extra)(lambda: None)
    assert router.routes
