"""Files on their way, and the notes of which of their bytes are here."""

import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from omlx_server.models.hub.part import PartFile, TransferStopped, bytes_here, note_of

BYTES = random.Random(3).randbytes(1_000_000)
RANGE = 300_000
# Writes to random ranges until somebody ends it; each byte is that of the file at its place.
WRITER = f"""
import random, sys
from pathlib import Path
from omlx_server.models.hub.part import PartFile
data = random.Random(3).randbytes({len(BYTES)})
part = PartFile(Path(sys.argv[1]), len(data), {RANGE}, print)
print("begun", flush=True)
while left := [at for at in part.ranges if not at.is_done]:
    at = random.choice(left)
    end = min(at.position + random.randrange(1, 2000), at.start + at.length)
    part.write(at, data[at.position : end])
part.move_to(Path(sys.argv[2]))
"""


def never(seconds: float) -> None:
    raise AssertionError("nobody else has the file")


def opened(path: Path, nbytes: int = len(BYTES), range_bytes: int = RANGE) -> PartFile:
    return PartFile(path, nbytes, range_bytes, never)


def noted(part: PartFile) -> list[int]:
    return [at.done for at in part.ranges]


def test_a_process_that_is_killed_leaves_a_true_note(tmp_path: Path) -> None:
    path, target = tmp_path / "a.incomplete", tmp_path / "a"
    before, rounds = 0, 0
    while not target.exists():
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(target)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None and writer.stdout.readline() == b"begun\n"
            # It needs some 20 ms for all of it.
            time.sleep(random.Random(rounds).uniform(0.0, 0.01) * (1 + rounds))
            writer.kill()
        rounds += 1
        if target.exists():
            break
        here = bytes_here(path, len(BYTES))
        assert here >= before
        before = here
        data = path.read_bytes()
        part = opened(path)
        for at in part.ranges:
            assert data[at.start : at.position] == BYTES[at.start : at.position]
        part.close()
    assert target.read_bytes() == BYTES
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_bytes_that_the_disk_does_not_take_are_not_noted(tmp_path: Path) -> None:
    part = opened(tmp_path / "a.incomplete")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (RANGE + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            part.write(part.ranges[1], BYTES[RANGE : RANGE + 500])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    part.close()
    assert bytes_here(part.path, len(BYTES)) == 0


def test_bytes_without_a_note_are_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "a.incomplete"
    path.write_bytes(BYTES[:700_000])
    assert bytes_here(path, len(BYTES)) == 700_000
    part = opened(path)
    assert noted(part) == [RANGE, RANGE, 100_000, 0]
    part.close()
    assert bytes_here(path, len(BYTES)) == 700_000


@pytest.mark.parametrize("harm", ["bytes cut", "note cut", "other size", "too much", "not a note"])
def test_a_note_that_can_not_be_true_does_not_count(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "a.incomplete"
    part = opened(path)
    part.write(part.ranges[1], BYTES[RANGE : RANGE + 500])
    part.close()
    assert bytes_here(path, len(BYTES)) == 500
    note = note_of(path).read_bytes()
    nbytes = len(BYTES)
    if harm == "bytes cut":
        path.write_bytes(b"\0" * RANGE)
    elif harm == "note cut":
        note_of(path).write_bytes(note[:-1])
    elif harm == "other size":
        nbytes -= 1
    elif harm == "too much":
        note_of(path).write_bytes(note[:24] + b"\xff" * 8 + note[32:])
    else:
        note_of(path).write_bytes(b"x" * len(note))
    assert bytes_here(path, nbytes) == 0
    part = opened(path, nbytes)
    assert part.here == 0 and path.stat().st_size == 0
    part.close()


def test_ranges_stay_as_they_were_divided(tmp_path: Path) -> None:
    part = opened(tmp_path / "a.incomplete")
    part.write(part.ranges[0], BYTES[:9])
    part.close()
    again = opened(tmp_path / "a.incomplete", range_bytes=1000)
    assert noted(again) == [9, 0, 0, 0]
    again.close()
    with pytest.raises(TransferStopped):
        again.write(again.ranges[0], b"x")


def test_ranges_that_are_joined_take_no_more_bytes(tmp_path: Path) -> None:
    part = opened(tmp_path / "a.incomplete")
    old = part.ranges[0]
    part.write(old, BYTES[:9])
    joined = part.join_ranges()
    assert joined is not None
    whole, lost = joined
    assert (whole.length, lost, part.here) == (len(BYTES), 9, 0)
    assert part.join_ranges() is None
    with pytest.raises(TransferStopped):
        part.write(old, BYTES[9:10])
    with pytest.raises(OSError, match="sends more"):
        part.write(whole, BYTES + b"x")
    part.write(whole, BYTES)
    part.move_to(tmp_path / "deep" / "a")
    assert (tmp_path / "deep" / "a").read_bytes() == BYTES


def test_a_file_of_no_bytes_is_here(tmp_path: Path) -> None:
    part = opened(tmp_path / "a.incomplete", 0)
    assert (part.ranges, part.here) == ([], 0)
    part.move_to(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b""
