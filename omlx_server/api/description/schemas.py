"""JSON schemas of many types at once, with shared parts."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core.core_schema import TaggedUnionSchema

Schema = dict[str, Any]

_PREFIX = "#/components/schemas/"
_MODE: JsonSchemaMode = "validation"
_NULL = {"type": "null"}


class _Plain(GenerateJsonSchema):
    """Pydantic's generator without titles. `oneOf` without a discriminator becomes `anyOf`: only
    the server's code tells its members apart."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def tagged_union_schema(self, schema: TaggedUnionSchema) -> Schema:
        shape = super().tagged_union_schema(schema)
        if "discriminator" not in shape:
            shape["anyOf"] = shape.pop("oneOf")
        return shape


class Schemas:
    """The schemas of all `kinds`. `components` holds, by name, those that others refer to."""

    def __init__(self, kinds: Iterable[Any]) -> None:
        unique = list(dict.fromkeys(kinds))
        inputs = [(kind, _MODE, TypeAdapter[Any](kind)) for kind in unique]
        by_mode, common = TypeAdapter.json_schemas(
            inputs, ref_template=f"{_PREFIX}{{model}}", schema_generator=_Plain
        )
        self.components: dict[str, Schema] = common.get("$defs", {})
        self._by_kind: dict[Any, Schema] = {kind: by_mode[kind, _MODE] for kind in unique}
        for kind, schema in self._by_kind.items():
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                _allow_null(self.components[schema["$ref"].removeprefix(_PREFIX)])

    def of(self, kind: Any) -> Schema:
        """Return the schema of one of `kinds`; KeyError for any other type."""
        return self._by_kind[kind]


def _allow_null(body: Schema) -> None:
    """Let each optional field of a body's schema also be null."""
    fields = body.get("properties", {})
    for name in fields.keys() - set(body.get("required", ())):
        options = fields[name].get("anyOf", [fields[name]])
        if fields[name] and _NULL not in options:
            fields[name] = {"anyOf": [*options, _NULL]}
