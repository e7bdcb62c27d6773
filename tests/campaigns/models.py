"""The models that a campaign can be run with."""

from collections.abc import Sequence
from pathlib import Path

from tests.api.conftest import CHATML
from tests.text import makers
from tests.tiny_models import save_tiny
from tests.vision_models import save_vision


def find(name: str, directory: Path) -> tuple[str, list[str]]:
    """The name for a server and the settings with which it finds it.

    `tiny` is made in `directory`. It is a slow one for its size: its prompts take longer to compute
    than its blocks to read, on a busy machine too."""
    if name != "tiny":
        return name, []
    path = makers.save(directory / "org" / "tiny", "byte_level", CHATML)
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    save_tiny(path, "llama", vocab_size=vocab, intermediate_size=4096)
    return "org/tiny", [f"models.dirs={directory}"]


def parted(name: str, directory: Path) -> tuple[str, list[str]]:
    """As `find`; the heads of `tiny` can be shared out to three ranks."""
    if name != "tiny":
        return name, []
    path = makers.save(directory / "org" / "tiny", "byte_level", CHATML)
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16}
    save_tiny(path, "qwen3", vocab_size=vocab, **heads)
    return "org/tiny", [f"models.dirs={directory}"]


def vision(directory: Path, family: str = "qwen3_vl") -> tuple[str, list[str]]:
    """As `find`, a tiny model that takes images."""
    save_vision(directory / "org" / "seeing", family)
    return "org/seeing", [f"models.dirs={directory}"]


def beside_vision(settings: Sequence[str], directory: Path) -> tuple[list[str], str]:
    """`settings` with a tiny model that takes images besides, and its name."""
    name, [found] = vision(directory)
    own = [one for one in settings if one.startswith("models.dirs=")]
    dirs = ",".join([*own, found.removeprefix("models.dirs=")])
    return [*(one for one in settings if one not in own), dirs if own else found], name


def drafter(directory: Path) -> Path:
    """The directory of a model with the vocabulary of `tiny` that takes a fraction of its time. It
    is hardly ever right."""
    path = makers.save(directory / "drafter", "byte_level", CHATML)
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    save_tiny(path, "llama", vocab_size=vocab, num_hidden_layers=1)
    return path
