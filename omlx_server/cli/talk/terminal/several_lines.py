"""Messages of several lines: a backslash at a line's end, or three quotes around them."""

_QUOTES = '"""'


def is_open(text: str) -> bool:
    """Whether a message goes on in the next line."""
    text = text.strip()
    return _quotes_are_open(text) or text.endswith("\\")


def message_of(text: str) -> str:
    """Return the message without quotes around it. Text that only begins with quotes keeps them."""
    text = text.strip()
    quoted = text[len(_QUOTES) : -len(_QUOTES)]
    is_quoted = text == f"{_QUOTES}{quoted}{_QUOTES}"
    if is_quoted and (_QUOTES not in quoted or _begins_a_block(text)):
        return quoted.strip("\n")
    return text


def continued(text: str) -> str:
    """Return an open text as it goes on: with a line end instead of a backslash."""
    if _quotes_are_open(text.strip()):
        return f"{text}\n"
    return f"{text.rstrip()[:-1]}\n"


def _quotes_are_open(text: str) -> bool:
    """Whether quotes lack their end: after those on a line of their own, quotes at the text's end;
    after others any quotes."""
    if not text.startswith(_QUOTES):
        return False
    if _begins_a_block(text):
        return not text.endswith(_QUOTES) or len(text) < 2 * len(_QUOTES)
    return _QUOTES not in text[len(_QUOTES) :]


def _begins_a_block(text: str) -> bool:
    return text.partition("\n")[0].rstrip() == _QUOTES
