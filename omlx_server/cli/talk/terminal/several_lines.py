"""Messages of several lines: a backslash at a line's end, or three quotes around them."""

_QUOTES = '"""'


def is_open(text: str) -> bool:
    text = text.strip()
    return _quotes_are_open(text) or text.endswith("\\")


def message(text: str) -> str:
    """Return the message without quotes around it. A text that only begins with quotes keeps
    them."""
    text = text.strip()
    inner = text[len(_QUOTES) : -len(_QUOTES)]
    if text == f"{_QUOTES}{inner}{_QUOTES}" and (_QUOTES not in inner or _begins_a_block(text)):
        return inner.strip("\n")
    return text


def continued(text: str) -> str:
    """Return an open text with its line end, without the backslash."""
    if _quotes_are_open(text.strip()):
        return f"{text}\n"
    return f"{text.rstrip()[:-1]}\n"


def _quotes_are_open(text: str) -> bool:
    """Quotes on a line of their own are closed by quotes at the end only."""
    if not text.startswith(_QUOTES):
        return False
    if _begins_a_block(text):
        return not text.endswith(_QUOTES) or len(text) < 2 * len(_QUOTES)
    return _QUOTES not in text[len(_QUOTES) :]


def _begins_a_block(text: str) -> bool:
    return text.partition("\n")[0].rstrip() == _QUOTES
