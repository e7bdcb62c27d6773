"""A program that connects rank 0 with the other ranks and measures sums over all of them. It runs
in a process of its own, which can be ended: MLX waits without end for a rank that is gone.

It reads a line of JSON: the "addresses" of all ranks, the "backend", the "rdma" devices between
them, and the "sums" as (bytes, rounds) each. It prints as JSON the seconds of each round, a list
for each of the sums. Without a line it ends.
"""

import json
import sys

from omlx_server.compute.cluster.ranks import form
from omlx_server.errors import ModelUnavailable, first_line


def main() -> int:
    line = sys.stdin.readline()
    if not line:
        return 0
    order = json.loads(line)
    try:
        ranks = form(order["addresses"], 0, order["backend"], order["rdma"])
    except (ModelUnavailable, OSError) as error:
        sys.stderr.write(f"{first_line(error)}\n")
        return 1
    times = [ranks.time_sums(nbytes, rounds) for nbytes, rounds in order["sums"]]
    sys.stdout.write(json.dumps(times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
