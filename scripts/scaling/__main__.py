"""The command line: `python -m scripts.scaling` runs all fleets and writes their tables into
docs/scaling.md; with names of sections, only those. A run is the same each time."""

import argparse
import sys

from scripts.scaling import page, report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.scaling", description=__doc__)
    names = ", ".join(report.SECTIONS)
    parser.add_argument("section", nargs="*", metavar="SECTION", help=f"one of {names}")
    options = parser.parse_args()
    for name in options.section:
        if name not in report.SECTIONS:
            parser.error(f"there is no section {name!r}; there are {names}")
    for name in options.section or report.SECTIONS:
        _say(f"{name}:")
        table = report.section(name, _say)
        # Read only now: a run takes minutes, and others may write meanwhile.
        text = page.PAGE.read_text(encoding="utf-8")
        page.PAGE.write_text(page.replaced(text, name, table), encoding="utf-8")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
