"""Grammars that compile, pass their trial, and need minutes or gigabytes at some later token."""

from typing import Any

FUSE = "[ab]{80}"  # longer than a trial walks


def _late(rules: str) -> str:
    return f"start: FUSE e\nFUSE: /{FUSE}/\n{rules}"


def ambiguous(alternatives: int) -> str:
    """Lark: each part of each part can be read in so many ways."""
    names = " | ".join(f"r{i}" for i in range(alternatives))
    rules = [f'r{i}: e e | "a" | "b" | "c"' for i in range(alternatives)]
    return _late("\n".join([f"e: {names}", *rules]))


def intersected(patterns: int) -> str:
    """Lark: the first step into it makes a product of so many patterns."""
    parts = " & ".join(rf"/{FUSE}d(.|\n)*w{i}(.|\n)*/" for i in range(patterns))
    return f"start: A\nA: /{FUSE}c/ | ( {parts} )"


def alternatives(count: int) -> dict[str, Any]:
    """A JSON schema: a list of lists, each of so many kinds that look alike."""
    lists = [
        {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": i % 7} for i in range(count)
    ]
    return {
        "$defs": {"n": {"anyOf": [*lists, {"type": "boolean"}]}},
        "type": "object",
        "properties": {
            "fuse": {"type": "string", "pattern": f"^{FUSE}$"},
            "bomb": {"$ref": "#/$defs/n"},
        },
        "required": ["fuse", "bomb"],
        "additionalProperties": False,
    }
