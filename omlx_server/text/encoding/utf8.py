"""Makes text that can be written as UTF-8. Pure."""


def whole(text: str) -> str:
    """`text` with "?" in place of each half of a surrogate pair: JSON can spell those, UTF-8
    can't."""
    return text.encode(errors="replace").decode()
