"""Text that has a UTF-8 form. Pure."""


def whole(text: str) -> str:
    """`text` without halves of surrogate pairs: JSON can spell those, and no answer can carry
    them."""
    return text.encode(errors="replace").decode()
