"""docs/reference/http.md: the routes of the OpenAPI document, one line each."""

from collections.abc import Iterator
from typing import Any

from scripts.reference.markdown import escaped, table, whole_page

_ABOUT = """\
Every route. `GET /openapi.json` has their bodies and answers; [openapi.md](../openapi.md) tells how
to read it. All but `/health*`, `/` and
`/web/*` need a key where `auth.api_keys` has any."""


def page(document: dict[str, Any]) -> str:
    return whole_page("HTTP routes", _ABOUT, _parts(document["paths"]))


def _parts(paths: dict[str, dict[str, Any]]) -> Iterator[str]:
    routes = [
        (operation["tags"][0], f"`{method.upper()} {path}`", escaped(operation["summary"]))
        for path, methods in paths.items()
        for method, operation in methods.items()
    ]
    for tag in dict.fromkeys(tag for tag, _, _ in routes):
        yield f"## {tag}"
        yield table(
            ("route", ""), sorted((place, about) for of, place, about in routes if of == tag)
        )
