"""A program that connects rank 0 with the other ranks and measures sums over all of them. It runs
in a process of its own, which can be ended: MLX waits without end for a rank that is gone.

It reads an `Order` as a line of JSON, and prints the seconds of each round as JSON, a list for each
of the order's sums. Without an order it ends."""

import json
import sys

from omlx_server.compute.cluster.ranks import form
from omlx_server.errors import ModelUnavailable


def main() -> int:
    line = sys.stdin.readline()
    if not line:
        return 0
    order = json.loads(line)
    try:
        ranks = form(order["addresses"], 0, order["backend"])
    except ModelUnavailable as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    times = [ranks.time_sums(nbytes, rounds) for nbytes, rounds in order["sums"]]
    sys.stdout.write(json.dumps(times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
