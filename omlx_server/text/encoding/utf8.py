"""Makes text that can be written as UTF-8."""


def without_surrogates(text: str) -> str:
    """Return `text` with "?" for each lone surrogate, which JSON can spell."""
    return text.encode(errors="replace").decode()
