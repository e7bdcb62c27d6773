"""Which texts a unit and a property list can hold."""


def is_sayable(text: str) -> bool:
    return not any(_is_unsayable(letter) for letter in text)


def _is_unsayable(letter: str) -> bool:
    """Neither XML nor systemd takes control characters; surrogates are bytes outside UTF-8."""
    code = ord(letter)
    return code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000 or code in (0xFFFE, 0xFFFF)
