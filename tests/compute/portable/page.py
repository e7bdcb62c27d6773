"""The table of docs/portability.md. As a program it traces all runs and writes it:
`python -m tests.compute.portable.page`."""

import sys
from collections.abc import Iterator

from tests.compute.portable.table import MLX, TABLE, Lacks, Takes
from tests.compute.portable.traced import ROOT, Traced, trace_all_runs

PAGE = ROOT / "docs" / "portability.md"
COMMAND = "python -m tests.compute.portable.page"
_MARK = f"<!-- made by {COMMAND} -->\n"


def table(found: Traced) -> str:
    """One row for each operation: the dtypes that we give to it or get from it, who calls it, what
    each backend takes, and the files of MLX that say so."""
    return "\n".join(["", f"MLX {MLX}", "", *_lines(found), ""])


def written() -> tuple[str, str]:
    """The page before the table, with the mark, and the table."""
    text, mark, rest = PAGE.read_text(encoding="utf-8").partition(_MARK)
    return text + mark, rest


def _lines(found: Traced) -> Iterator[str]:
    yield "| operation | our dtypes | called by | Metal takes | CUDA takes | in MLX |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name in sorted({use.operation for use in found}):
        uses = [use for use in found if use.operation == name]
        dtypes = {dtype.rstrip("_") for use in uses for dtype in (*use.inputs, *use.outputs)}
        is_own = any(place.is_own for use in uses for place in found[use])
        cells = [name, ", ".join(sorted(dtypes)), "us" if is_own else "layers"]
        on_cpu = " (on the CPU)" if all(use.on_cpu for use in uses) else ""
        row = TABLE.get(name)
        backends = [_words(takes) for _, takes in row.backends()] if row else ["?", "?"]
        cells = [name + on_cpu, *cells[1:], *backends, row.source if row else "?"]
        yield f"| {' | '.join(cells)} |"


def _words(takes: Takes | Lacks) -> str:
    return takes.words


if __name__ == "__main__":
    before, _ = written()
    PAGE.write_text(before + table(trace_all_runs()), encoding="utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)} is written\n")
