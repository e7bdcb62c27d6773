"""Makes text that can be written as UTF-8."""


def whole(text: str) -> str:
    """Return `text` with "?" in place of each half of a surrogate pair, which JSON can spell."""
    return text.encode(errors="replace").decode()
