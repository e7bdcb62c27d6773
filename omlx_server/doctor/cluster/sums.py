"""A program that connects rank 0 with the other ranks, measures sums over all, and splits the model
without reading its weights. It is a process of its own because MLX waits without end for a rank
that is gone.

It reads a line of JSON: the "addresses" of all ranks, the "backend", the "rdma" devices, the "sums"
as (bytes, rounds) each, and the directory of the "model". It prints as JSON the "seconds" of each
round, a list per sum, and "why_not_split", empty if the model can be split.
"""

import json
import sys
from pathlib import Path

from omlx_server.compute.cluster.ranks import ConnectedRanks, connect_ranks
from omlx_server.compute.cluster.splitting import split_model
from omlx_server.compute.model.loader import open_lazily
from omlx_server.errors import ModelUnavailable, one_line


def main() -> int:
    line = sys.stdin.readline()
    if not line:
        return 0
    order = json.loads(line)
    try:
        ranks = connect_ranks(order["addresses"], 0, order["backend"], order["rdma"])
    except (ModelUnavailable, OSError) as error:
        sys.stderr.write(f"{one_line(error)}\n")
        return 1
    seconds = [ranks.time_sums(nbytes, rounds) for nbytes, rounds in order["sums"]]
    why = why_not_split(Path(order["model"]), ranks)
    sys.stdout.write(json.dumps({"seconds": seconds, "why_not_split": why}))
    return 0


def why_not_split(path: Path, ranks: ConnectedRanks) -> str:
    try:
        split_model(open_lazily(path), ranks)
    except ModelUnavailable as error:
        return error.message
    return ""


if __name__ == "__main__":
    sys.exit(main())
