"""Names of GGUF files: one of several parts is NAME-00001-of-00003.gguf, and a file's tag is the
type in its name, such as Q4_K_M."""

import re
from collections.abc import Collection
from pathlib import PurePath

USUAL_TAG = "Q4_K_M"
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_TYPE = r"(?:UD-)?(?:I?Q\d(?:_\w+)?|TQ\d_\d|B?FP?(?:8|16|32)|(?:MX|NV)FP4(?:_\w+)?)"
_TAG = re.compile(_TYPE, re.IGNORECASE)
_TYPE_IN = re.compile(rf"(?<![^-._]){_TYPE}(?![^-.])", re.IGNORECASE)
_DYNAMIC = "UD-"  # Unsloth's, which people leave out
_NO_FORM = re.compile(r"(?:UD-)?(?:IQ|TQ|NV|FP8)")
_NO_MODELS = ("mmproj", "imatrix")  # a vision tower, and what a quantisation was made with


def is_part(path: str) -> bool:
    return _PART.fullmatch(path) is not None


def is_first(path: str) -> bool:
    """Return whether it is a whole model by its name, or the first part of one."""
    part = _PART.fullmatch(path)
    return is_weights(path) and (part is None or int(part["number"]) == 1)


def is_weights(path: str) -> bool:
    name = PurePath(path).name.lower()
    return path.endswith(".gguf") and not any(word in name for word in _NO_MODELS)


def whole_stem(path: str) -> str:
    """Return the stem that all parts of a model share."""
    part = _PART.fullmatch(path)
    return PurePath(part["stem"]).name if part else PurePath(path).stem


def parts_of(path: str) -> list[str]:
    """Return the paths of all parts, whether they are there or not."""
    part = _PART.fullmatch(path)
    if part is None:
        return [path]
    stem, count = part["stem"], part["count"]
    return [f"{stem}-{number:05}-of-{count}.gguf" for number in range(1, int(count) + 1)]


def is_tag(text: str) -> bool:
    return _TAG.fullmatch(text) is not None


def tag_of(path: str) -> str:
    """Return the last type in a file's name, else the one that its folder is named by, or ""."""
    return type_in(whole_stem(path)) or type_in(PurePath(path).parent.name)


def type_in(name: str) -> str:
    types = _TYPE_IN.findall(name)
    return types[-1].upper() if types else ""


def has_form(tag: str) -> bool:
    """Return whether MLX has a form for a type."""
    return _NO_FORM.match(tag) is None


def choose_tag(tags: Collection[str], asked: str) -> str:
    """Return the one of the `tags` that is asked for, by default the usual or the only one; else
    ""."""
    if asked:
        return next((tag for tag in (asked, f"{_DYNAMIC}{asked}") if tag in tags), "")
    if USUAL_TAG in tags:
        return USUAL_TAG
    return next(iter(tags)) if len(tags) == 1 else ""
