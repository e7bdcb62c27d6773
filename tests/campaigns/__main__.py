"""`scripts/campaign kill --rounds 20`: the slow campaigns, by hand."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.campaigns import kill


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/campaign", description=__doc__)
    parser.add_argument("campaign", choices=["kill"], help="kill -9 while blocks are written")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--model", default="starter", help="a name, directory or Hugging Face id")
    parser.add_argument("--seconds", type=float, default=3.0, help="the longest life of a server")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        outcome = kill.campaign(
            options.model,
            [],
            Path(directory),
            options.rounds,
            seconds=options.seconds,
            seed=options.seed,
        )
    sys.stdout.write(f"{outcome}\n")
    return 1 if outcome.wrong or outcome.failed_starts or not outcome.cached else 0


if __name__ == "__main__":
    sys.exit(main())
