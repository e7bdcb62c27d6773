"""Blocks in a directory: what is put comes back, nothing foreign is opened, counted or deleted."""

import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omlx_server.core.blocks.keys import namespace_id
from omlx_server.store.files import Files, NamespaceDescription, StoredFile
from omlx_server.store.lock import Lock
from omlx_server.store.mediums.disk import FileOperations
from omlx_server.store.mediums.medium import Medium, MediumError, Name
from omlx_server.store.secret import load_secret

SPACE = namespace_id("model")
OTHER = namespace_id("another model")


def name_of(number: int, namespace: str = SPACE) -> Name:
    return Name(namespace, f"{number % 256:02x}{number:062x}")


def path_of(root: Path, name: Name) -> Path:
    return root / name.namespace / name.key[:2] / f"{name.key}.safetensors"


def everything_below(root: Path) -> dict[str, bytes | None]:
    """Relative path of all there is, with the content of regular files."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        if path.is_file() and not path.is_symlink()
        else None
        for path in root.rglob("*")
    }


def names_in(files: Files) -> set[Name]:
    return {found.name for found in files.scan()}


@contextmanager
def refused(reason: str) -> Iterator[None]:
    with pytest.raises(MediumError) as caught:
        yield
    assert caught.value.reason == reason


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "kv"


@pytest.fixture
def files(root: Path) -> Files:
    return Files(root)


# Put and get


def test_it_is_a_medium(files: Files) -> None:
    medium: Medium = files
    medium.put(name_of(1), [b"one"])
    assert medium.contains_many([name_of(1), name_of(2)]) == {name_of(1)}
    medium.delete(name_of(1))
    medium.delete(name_of(1))
    assert medium.get(name_of(1)) is None
    medium.close()


def test_nothing_is_made_before_the_first_put(files: Files, root: Path) -> None:
    assert files.get(name_of(1)) is None
    assert list(files.scan()) == []
    assert files.uses() == []
    files.remove_leftovers()
    assert files.clear() == []
    files.touch(name_of(1), 1.0)
    assert not root.parent.exists()


def test_parts_of_all_kinds_come_back_as_one(files: Files) -> None:
    grid = memoryview(bytes(range(12))).cast("I", (3,))
    empty = memoryview(bytes(12)).cast("B", (3, 4))[:0]
    files.put(name_of(1), [b"", b"head", grid, empty, memoryview(b"tail")])
    assert files.get(name_of(1)) == b"head" + bytes(range(12)) + b"tail"
    files.put(name_of(1), [])
    assert files.get(name_of(1)) == b""


def test_a_second_put_takes_the_place_of_the_first(files: Files, root: Path) -> None:
    files.put(name_of(1), [b"first"])
    files.put(name_of(1), [b"second"])
    assert files.get(name_of(1)) == b"second"
    assert [found.nbytes for found in files.scan()] == [6]


def test_modes_keep_everybody_else_out_whatever_the_umask(root: Path) -> None:
    before = os.umask(0)
    try:
        files = Files(root)
        files.put(name_of(1), [b"one"])
        files.write_description(DESCRIPTION)
        load_secret(root)
        assert Lock(root).acquire()
    finally:
        os.umask(before)
    for path in [root.parent, root, *root.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_a_root_that_vanishes_is_made_again(files: Files, root: Path) -> None:
    files = Files(root, min_free_bytes=1)
    files.put(name_of(1), [b"one"])
    for path in sorted(root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    root.rmdir()
    assert files.get(name_of(1)) is None
    assert list(files.scan()) == []
    files.put(name_of(2), [b"two"])
    assert names_in(files) == {name_of(2)}
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "name",
    [
        Name("../../../etc", "a" * 64),
        Name(SPACE, "../" + "a" * 61),
        Name(SPACE, "a" * 64 + "\n"),
        Name(SPACE, "A" * 64),
        Name(SPACE + "\0", "a" * 64),
        Name("", ""),
    ],
)
def test_a_name_of_another_shape_leads_nowhere(files: Files, name: Name) -> None:
    for operation in (files.get, files.delete, files.record):
        with refused("io"):
            operation(name)
    with refused("io"):
        files.put(name, [b""])
    with refused("io"):
        files.touch(name, 0.0)
    with refused("io"):
        files.contains_many([name])


# What lies at a block's name and is none

Make = Callable[[Path], None]


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_link(path: Path) -> None:
    target = path.with_name("target")
    target.write_bytes(b"secret of another")
    path.symlink_to(target)


def make_folder(path: Path) -> None:
    path.mkdir()


def make_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(here)


STRANGERS = [make_fifo, make_link, make_folder, make_socket]


def within(seconds: float, operation: "threading.Thread") -> None:
    operation.start()
    operation.join(seconds)
    assert not operation.is_alive(), "it hangs"


@pytest.mark.parametrize("make", STRANGERS, ids=lambda make: make.__name__)
def test_what_is_no_regular_file_is_refused_and_hangs_nothing(
    files: Files, root: Path, make: Make
) -> None:
    path = path_of(root, name_of(1))
    path.parent.mkdir(parents=True)
    make(path)
    reasons = []

    def read() -> None:
        for operation in (files.get, files.record):
            try:
                operation(name_of(1))
            except MediumError as error:
                reasons.append(error.reason)

    within(5.0, threading.Thread(target=read, daemon=True))
    assert reasons == ["io", "io"]
    assert names_in(files) == files.contains_many([name_of(1)]) == set()


def test_a_huge_sparse_file_is_refused_unread(root: Path) -> None:
    files = Files(root, max_bytes=1000)
    files.put(name_of(1), [bytes(1000)])
    assert files.get(name_of(1)) == bytes(1000)
    os.truncate(path_of(root, name_of(1)), 1 << 40)
    with refused("too-large"):
        files.get(name_of(1))
    with refused("too-large"):
        files.put(name_of(1), [bytes(1000), b"1"])
    files.delete(name_of(1))
    assert files.get(name_of(1)) is None


def test_a_device_full_of_zeros_is_refused(files: Files, root: Path) -> None:
    files.put(name_of(1), [b"one"])
    path_of(root, name_of(1)).unlink()
    path_of(root, name_of(1)).symlink_to("/dev/zero")
    with refused("io"):
        files.get(name_of(1))


@pytest.mark.parametrize("make", [make_fifo, make_link])
def test_a_put_takes_the_place_of_a_stranger_without_opening_it(
    files: Files, root: Path, make: Make
) -> None:
    path = path_of(root, name_of(1))
    path.parent.mkdir(parents=True)
    make(path)
    files.put(name_of(1), [b"one"])
    assert files.get(name_of(1)) == b"one"
    target = path.with_name("target")
    assert not target.exists() or target.read_bytes() == b"secret of another"


def test_a_put_onto_a_folder_fails_and_leaves_nothing(files: Files, root: Path) -> None:
    path_of(root, name_of(1)).mkdir(parents=True)
    before = everything_below(root)
    with refused("io"):
        files.put(name_of(1), [b"one"])
    assert everything_below(root) == before


# Scan and use


def test_a_scan_finds_names_sizes_and_last_uses(files: Files) -> None:
    for number in range(300):
        files.put(name_of(number), [bytes(number)])
        files.touch(name_of(number), 1000.5 + number)
    files.put(name_of(1, OTHER), [b"x"])
    files.touch(name_of(1, OTHER), 4e9)
    files.touch(name_of(999), 1.0)
    expected = {StoredFile(name_of(number), number, 1000.5 + number) for number in range(300)}
    assert set(files.scan(SPACE)) == expected
    assert set(files.scan()) == expected | {StoredFile(name_of(1, OTHER), 1, 4e9)}
    assert list(files.scan("0" * 16)) == list(files.scan("..")) == []


def test_five_thousand_files_are_found(root: Path) -> None:
    """Of 100,000 a scan takes half a second; to make them takes longer."""
    for shard in range(256):
        (root / SPACE / f"{shard:02x}").mkdir(parents=True)
    names = {name_of(number) for number in range(5_000)}
    for name in names:
        os.close(os.open(path_of(root, name), os.O_CREAT | os.O_WRONLY))
    assert names_in(Files(root)) == names


# Foreign files (K9)


def plant(root: Path, rng: random.Random) -> None:
    """Fill a directory with what looks like ours and is not."""
    key = f"{rng.getrandbits(256):064x}"
    spaces = [SPACE, OTHER, "model", SPACE.upper(), SPACE + "0", "lost+found", "."]
    shards = [key[:2], "zz", "0", "000", "AB", "."]
    names = [
        *(f"{key}.safetensors{end}" for end in (".bak", "~", "\n", ".tmp")),
        *(key, key[:-1] + ".safetensors", key.upper() + ".safetensors", f"_{key}.safetensors"),
        *(
            "model.safetensors",
            ".tmp",
            ".tmp-1",
            ".tmp-abc-00000000-00000001",
            ".tmp-0-00000000-00000001",
        ),
        *(f".tmp-{os.getpid()}-00000000-00000001x", "namespace.json~", "notes.txt", "README"),
    ]
    for _ in range(40):
        folder = root / rng.choice(spaces) / rng.choice(shards)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / rng.choice(names)).write_bytes(rng.randbytes(5))
    wrong_shard = root / SPACE / f"{(int(key[:2], 16) + 1) % 256:02x}"
    wrong_shard.mkdir(parents=True, exist_ok=True)
    (wrong_shard / f"{key}.safetensors").write_bytes(b"in another shard")
    (root / SPACE / f"{key}.safetensors").write_bytes(b"in no shard")
    (root / f"{key}.safetensors").write_bytes(b"in no namespace")
    elsewhere = root.parent / "elsewhere"
    linked = elsewhere / "ab" / ("ab" * 32 + ".safetensors")
    linked.parent.mkdir(parents=True, exist_ok=True)
    linked.write_bytes(b"through a link")
    for link, target in [(root / ("e" * 16), elsewhere), (root / SPACE / "ab", elsewhere / "ab")]:
        if not link.exists():
            link.symlink_to(target)


@pytest.mark.parametrize("seed", range(20))
def test_only_our_own_names_are_ever_counted_or_deleted(root: Path, seed: int) -> None:
    rng = random.Random(seed)
    plant(root, rng)
    before = {path: data for path, data in everything_below(root.parent).items() if data}
    files = Files(root)
    assert list(files.scan()) == []
    names = [name_of(rng.randrange(30), rng.choice([SPACE, OTHER])) for _ in range(60)]
    for name in names:
        if rng.random() < 0.5:
            files.put(name, [b"1"])
        else:
            files.delete(name)
    files.write_description(DESCRIPTION)
    if rng.random() < 0.5:
        files.clear(SPACE)
    files.remove_leftovers()
    files.clear()
    after = {path: data for path, data in everything_below(root.parent).items() if data}
    assert after == before
    assert list(files.scan()) == []


def test_clear_leaves_nothing_of_ours_but_the_secret(files: Files, root: Path) -> None:
    load_secret(root)
    for number in range(20):
        files.put(name_of(number), [b"one"])
        files.put(name_of(number, OTHER), [b"two"])
    files.write_description(DESCRIPTION)
    assert [found.nbytes for found in files.clear(OTHER)] == [3] * 20
    assert names_in(files) == {name_of(number) for number in range(20)}
    assert {found.name for found in files.clear()} == {name_of(number) for number in range(20)}
    assert [path.name for path in root.rglob("*")] == ["secret"]


# Leftovers


def dead_process() -> int:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def test_leftovers_of_dead_processes_are_removed_and_no_others(files: Files, root: Path) -> None:
    files.put(name_of(1), [b"one"])
    folder = path_of(root, name_of(1)).parent
    gone, alive = dead_process(), os.getppid()
    for place in (root, root / SPACE, folder):
        for pid in (gone, alive, os.getpid()):
            (place / f".tmp-{pid}-00000000-00000007").write_bytes(b"half")
    (folder / f".tmp-{gone}-00000000-00000008").mkdir()
    assert names_in(files) == {name_of(1)}
    Files(root, writable=False).remove_leftovers()
    assert len(list(root.rglob(".tmp-*"))) == 10
    files.remove_leftovers()
    left = {path.name for path in root.rglob(".tmp-*")}
    assert left == {f".tmp-{alive}-00000000-00000007", f".tmp-{gone}-00000000-00000008"}


class Watching(FileOperations):
    """Looks at the directory in the middle of a put."""

    def __init__(self, files: list[Files]) -> None:
        self.files = files
        self.seen: list[set[Name]] = []

    def replace(self, source: Path, target: Path) -> None:
        other = self.files[0]
        self.seen.append(names_in(other))
        other.remove_leftovers()
        super().replace(source, target)


def test_a_block_under_way_is_neither_found_nor_taken_for_a_leftover(root: Path) -> None:
    watching = Watching([Files(root)])
    files = Files(root, operations=watching)
    files.put(name_of(1), [b"one"])
    files.put(name_of(1), [b"two"])
    assert watching.seen == [set(), {name_of(1)}]
    assert files.get(name_of(1)) == b"two"


# Room


class Space(FileOperations):
    def __init__(self, free: int) -> None:
        self.free = free
        self.asked = 0

    def free_bytes(self, path: Path) -> int:
        self.asked += 1
        return self.free


def test_room_is_kept_free_and_asked_for_once_a_second(root: Path) -> None:
    now = [0.0]
    space = Space(1000)
    files = Files(root, min_free_bytes=900, clock=lambda: now[0], operations=space)
    files.put(name_of(1), [bytes(60)])
    with refused("full"):
        files.put(name_of(2), [bytes(60)])
    files.put(name_of(2), [bytes(40)])
    assert space.asked == 1
    space.free = 1 << 40
    now[0] = 1.0
    files.put(name_of(3), [bytes(60)])
    assert space.asked == 2
    assert len(names_in(files)) == 3


def test_free_bytes_are_known_before_there_is_a_directory(files: Files, root: Path) -> None:
    assert not root.parent.exists()
    assert files.free_bytes() > 0


# Only one process writes


def test_without_the_right_to_write_nothing_changes(files: Files, root: Path) -> None:
    files.put(name_of(1), [b"one"])
    files.touch(name_of(1), 5.0)
    before = everything_below(root)
    reader = Files(root, writable=False)
    for refusing in (
        lambda: reader.put(name_of(2), [b"two"]),
        lambda: reader.write_description(DESCRIPTION),
        reader.clear,
    ):
        with refused("read-only"):
            refusing()
    reader.delete(name_of(1))
    reader.touch(name_of(1), 9.0)
    assert everything_below(root) == before
    assert list(reader.scan()) == [StoredFile(name_of(1), 3, 5.0)]
    assert reader.get(name_of(1)) == b"one"


HOLD = """
import sys, pathlib
from omlx_server.store.lock import Lock
lock = Lock(pathlib.Path(sys.argv[1]))
print(lock.acquire(), flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(root: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", HOLD, str(root)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        yield process
        process.kill()


def test_one_process_has_the_lock_until_it_is_killed(root: Path) -> None:
    with another_process(root) as holder:
        assert holder.stdout and holder.stdout.readline() == "True\n"
        lock = Lock(root)
        assert not lock.acquire()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert lock.acquire()
        assert lock.acquire()
    with another_process(root) as second:
        assert second.stdout and second.stdout.readline() == "False\n"
    lock.release()
    lock.release()
    with another_process(root) as third:
        assert third.stdout and third.stdout.readline() == "True\n"


def test_a_lock_file_from_before_blocks_nothing(root: Path) -> None:
    root.mkdir(parents=True)
    (root / "lock").write_text("4711")
    assert Lock(root).acquire()


# The secret


TELL = """
import sys, pathlib
from omlx_server.store.secret import load_secret
sys.stdin.read(1)
print(load_secret(pathlib.Path(sys.argv[1])).hex())
"""


def test_processes_that_start_at_once_agree_on_the_secret(root: Path) -> None:
    command = [sys.executable, "-c", TELL, str(root)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in started:
        assert process.stdin
        process.stdin.write("g")
        process.stdin.flush()
    told = {process.communicate()[0].strip() for process in started}
    assert told == {load_secret(root).hex()}


def test_threads_that_start_at_once_agree_on_the_secret(tmp_path: Path) -> None:
    for turn in range(50):
        told: list[bytes] = []
        barrier = threading.Barrier(4)

        def tell(root: Path, told: list[bytes] = told, at: threading.Barrier = barrier) -> None:
            at.wait()
            told.append(load_secret(root))

        threads = [threading.Thread(target=tell, args=(tmp_path / str(turn),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(told) == 4 and len(set(told)) == 1


@pytest.mark.parametrize("damaged", [b"", b"short", bytes(32), b"x" * 33])
def test_a_damaged_secret_is_made_anew(root: Path, damaged: bytes) -> None:
    root.mkdir(parents=True)
    (root / "secret").write_bytes(damaged)
    made = load_secret(root)
    assert len(made) == 32 and made != damaged and load_secret(root) == made
    assert (root / "secret").read_bytes() == made


@pytest.mark.parametrize("make", STRANGERS, ids=lambda make: make.__name__)
def test_a_secret_that_is_no_file_is_refused(root: Path, make: Make) -> None:
    root.mkdir(parents=True)
    make(root / "secret")
    with refused("io"):
        load_secret(root)


# Namespaces


DESCRIPTION = NamespaceDescription("model", "SmolLM2", "/models/smol", 64, 1.5e9)


def test_namespaces_are_listed_with_what_they_take(files: Files) -> None:
    files.put(name_of(1), [b"one"])
    files.put(name_of(2), [b"three"])
    files.put(name_of(1, OTHER), [b"x"])
    files.write_description(DESCRIPTION)
    uses = {use.id: use for use in files.uses()}
    assert (uses[SPACE].blocks, uses[SPACE].nbytes) == (2, 8)
    assert uses[SPACE].description == DESCRIPTION
    assert (uses[OTHER].blocks, uses[OTHER].description) == (1, None)


def test_a_description_is_written_once_and_anew_when_damaged(files: Files, root: Path) -> None:
    files.write_description(DESCRIPTION)
    files.write_description(NamespaceDescription("model", "Other", "", 64, 0.0))
    assert files.describe(SPACE) == DESCRIPTION
    (root / SPACE / "namespace.json").write_bytes(b"")
    assert files.describe(SPACE) is None
    files.write_description(DESCRIPTION)
    assert files.describe(SPACE) == DESCRIPTION


@pytest.mark.parametrize(
    "garbage",
    [
        *(b"", b"\0\xff", b"[]", b"{}", b"null", b"7", b"[" * 100_000, b"{" + b" " * (2 << 20)),
        b'{"namespace":"model","model":1,"path":"","block_size":1,"created":1.0}',
        b'{"namespace":"model","model":"","path":"","block_size":true,"created":1.0}',
        b'{"namespace":"model","model":"","path":"","block_size":1,"created":NaN}',
        b'{"namespace":"model","model":"","path":"","block_size":1,"created":1e999}',
        b'{"namespace":"other","model":"","path":"","block_size":1,"created":1.0}',
        b'{"namespace":"\\ud800","model":"","path":"","block_size":1,"created":1.0}',
        b'{"namespace":7,"model":"","path":"","block_size":1,"created":1.0}',
        b'{"namespace":"model","model":"","path":"","block_size":1,"created":1.0,"x":1}',
    ],
)
def test_a_description_that_makes_no_sense_is_none(
    files: Files, root: Path, garbage: bytes
) -> None:
    (root / SPACE).mkdir(parents=True)
    (root / SPACE / "namespace.json").write_bytes(garbage)
    assert files.describe(SPACE) is None
    assert files.uses()[0].description is None
    assert files.describe("../" + SPACE) is None


def test_a_description_of_a_path_that_is_no_text_is_read_again(files: Files) -> None:
    path = os.fsdecode(b"/data/\xff/model")
    description = NamespaceDescription("model", "SmolLM2", path, 64, 1.5e9)
    files.write_description(description)
    assert files.uses()[0].description == description
