"""The program that takes memory: how much at most, and that it ends with its doctor."""

import subprocess
import sys

from omlx_server.doctor.stress.taker import next_chunks


def test_it_grows_to_its_bounds_and_gives_half_back() -> None:
    chunk, most, rest, free = 10, 95, 50, 100
    held, history = 0, []
    for _ in range(12):
        held = next_chunks(held, chunk, free - held * chunk, most, rest)
        history.append(held)
    assert history == [1, 2, 3, 4, 5, 2, 3, 4, 5, 2, 3, 4]
    assert next_chunks(9, chunk, 1000, most, rest) == 4, "the most is held"
    assert next_chunks(1, chunk, 0, most, rest) == 0, "others want it"


def test_it_ends_with_its_stdin_and_tells_what_it_held() -> None:
    most = 16 << 20
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-m", "omlx_server.doctor.stress.taker", str(most)],
        stdin=pipe,
        stdout=pipe,
        text=True,
    ) as taker:
        out, _ = taker.communicate(timeout=60)
    assert taker.returncode == 0
    assert 0 < int(out) <= most
