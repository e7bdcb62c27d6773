"""Names of GGUF files; one of several parts is NAME-00001-of-00003.gguf."""

import re
from pathlib import Path

SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})")


def is_model(file: Path) -> bool:
    """Return whether it is a whole model by its name, or the first part of one."""
    split = SPLIT.fullmatch(file.stem)
    is_first = split is None or int(split["number"]) == 1
    return is_first and file.suffix == ".gguf" and file.is_file()
