"""Messages of several lines: a backslash at a line's end, or three quotes around them. Pure."""

_QUOTES = '"""'


def is_open(text: str) -> bool:
    """Whether the end of a line is not yet the end of the message."""
    text = text.strip()
    if text.startswith(_QUOTES):
        return len(text) < 2 * len(_QUOTES) or not text.endswith(_QUOTES)
    return text.endswith("\\")


def message(text: str) -> str:
    """The message of what was typed: without the quotes around it, and blanks at its ends."""
    text = text.strip()
    if text.startswith(_QUOTES) and not is_open(text):
        text = text[len(_QUOTES) : -len(_QUOTES)].strip("\n")
    return text


def continued(text: str) -> str:
    """An open text with the end of its line: without the backslash that asked for more."""
    quoted = text.lstrip().startswith(_QUOTES)
    return f"{text}\n" if quoted else f"{text.rstrip()[:-1]}\n"
