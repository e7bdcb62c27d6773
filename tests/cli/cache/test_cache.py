"""`omlx-server cache` on real directories: what is there, what is damaged, what goes; and that
nothing foreign is touched."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from omlx_server.cli.app import app
from omlx_server.core.blocks.keys import namespace_id, root_key
from omlx_server.core.blocks.record import PackedArrays, Record, RecordTensor
from omlx_server.store.block_file import encode
from omlx_server.store.files import Files, NamespaceDescription
from omlx_server.store.mediums.medium import Name
from omlx_server.store.secret import load_secret
from tests.cli.locking import locked

ROOT = Path(__file__).parents[3]
HEAVY = {"mlx", "mlx_lm", "transformers", "fastapi", "uvicorn", "numpy", "httpx"}
PACKED = PackedArrays([RecordTensor("F32", (4, 64), bytes(range(256)) * 4)], (((0, 0),),))
runner = CliRunner()


class Store:
    """A cold directory with chains of blocks, each block used a second after the one before."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = Files(root)
        self._now = 1_700_000_000.0

    def add_model(self, path: Path, namespace: str) -> None:
        about = NamespaceDescription(namespace, path.name, str(path), 4, 1_700_000_000.0)
        self.files.write_description(about)

    def add_chain(self, namespace: str, length: int, *, first_token: int = 0) -> list[Name]:
        parent = root_key(namespace, b"")
        names = []
        for start in range(0, 4 * length, 4):
            tokens = tuple(range(first_token + start, first_token + start + 4))
            record = Record(namespace, parent, start, tokens)
            names.append(Name(namespace_id(namespace), record.key.hex()))
            self.files.put(names[-1], encode(record, PACKED, load_secret(self.root)))
            self.use(names[-1])
            parent = record.key
        return names

    def use(self, name: Name) -> None:
        self._now += 1
        self.files.touch(name, self._now)

    def path(self, name: Name) -> Path:
        return self.root / name.namespace / name.key[:2] / f"{name.key}.safetensors"

    def names(self) -> set[Name]:
        return {found.name for found in self.files.scan()}

    def nbytes(self) -> int:
        return sum(found.nbytes for found in self.files.scan())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three blocks of a model that is there, two of one that is gone."""
    store = Store(tmp_path / "kv")
    (tmp_path / "models" / "org" / "here").mkdir(parents=True)
    store.add_model(tmp_path / "models" / "org" / "here", "here")
    store.add_model(tmp_path / "models" / "org" / "gone", "gone")
    store.add_chain("here", 3)
    store.add_chain("gone", 2)
    return store


def cache(store: Store, *arguments: str) -> Result:
    return runner.invoke(app, ["cache", *arguments, "--dir", str(store.root)])


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


# stats


def test_stats_tells_models_sizes_and_whether_they_are_there(store: Store) -> None:
    document = json.loads(ok(cache(store, "stats", "--json")))
    assert document["blocks"] == 5
    assert document["bytes"] == store.nbytes()
    assert document["budget_bytes"] == 20 * 10**9
    by_model = {shape["model"]: shape for shape in document["namespaces"]}
    here, gone = by_model["here"], by_model["gone"]
    assert (here["blocks"], here["model_is_there"]) == (3, True)
    assert (gone["blocks"], gone["model_is_there"]) == (2, False)
    assert here["id"] == namespace_id("here")
    assert here["path"].endswith("models/org/here")
    assert here["last_used"] == "2023-11-14T22:13:23+00:00"


def test_the_table_names_all_of_it(store: Store) -> None:
    text = ok(runner.invoke(app, ["cache", "stats", "--dir", str(store.root)], terminal_width=200))
    assert "here" in text and "gone" in text
    assert f"5 blocks, {store.nbytes() / 1000:.1f} kB of 20.0 GB, in {store.root}" in text


def test_a_model_of_the_hub_has_its_name_there(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "hub" / "models--org--Name-4bit" / "snapshots" / "0123abcd"
    store.add_model(path, "hub")
    document = json.loads(ok(cache(store, "stats", "--json")))
    assert "org/Name-4bit" in {shape["model"] for shape in document["namespaces"]}


def test_a_namespace_without_description_is_shown(store: Store) -> None:
    (store.root / namespace_id("gone") / "namespace.json").write_text("{")
    shapes = json.loads(ok(cache(store, "stats", "--json")))["namespaces"]
    unknown = next(shape for shape in shapes if shape["model"] is None)
    assert (unknown["blocks"], unknown["model_is_there"]) == (2, None)
    ok(cache(store, "stats"))


def test_a_description_cannot_write_to_the_terminal(store: Store, tmp_path: Path) -> None:
    store.add_model(tmp_path / "a\x1b[2Jb [red]", "strange")
    text = ok(cache(store, "stats"))
    assert "\x1b" not in text
    assert "[red]" in text


@pytest.mark.parametrize("path", ["x" * 5000, "\0", ""])
@pytest.mark.parametrize("when", [-(10**10), 10**17])
def test_a_strange_path_or_date_is_no_reason_to_fail(store: Store, path: str, when: int) -> None:
    about = NamespaceDescription("odd", "odd", path, 4, 1.0)
    store.files.write_description(about)
    (name,) = store.add_chain("odd", 1)
    try:
        store.files.touch(name, float(when))
    except OverflowError:
        pytest.skip("this file system has no such date")
    ok(cache(store, "stats"))
    ok(cache(store, "stats", "--json"))
    ok(cache(store, "trim", "--to", "1kB"))


@pytest.mark.parametrize("command", ["stats", "verify", "verify --delete", "clear --yes", "trim"])
def test_a_missing_directory_holds_nothing_and_is_not_made(home: Path, command: str) -> None:
    result = runner.invoke(app, ["cache", *command.split(), "--dir", "nowhere"])
    assert ok(result) == f"Nothing is stored in {home / 'nowhere'}.\n"
    assert not (home / "nowhere").exists()


@pytest.mark.parametrize("command", ["stats", "verify --delete", "clear --yes", "trim --to 0"])
def test_a_foreign_directory_is_left_as_it_is(home: Path, command: str) -> None:
    foreign = home / "documents"
    (foreign / "ab").mkdir(parents=True)
    (foreign / "ab" / f"{'ab' * 32}.safetensors").write_bytes(b"mine")
    before = sorted(foreign.rglob("*"))
    assert "Nothing" in ok(runner.invoke(app, ["cache", *command.split(), "--dir", str(foreign)]))
    assert sorted(foreign.rglob("*")) == before


def test_the_directory_comes_from_the_settings(store: Store, home: Path) -> None:
    config = home / "other.toml"
    config.write_text(f'[cache]\ncold_dir = "{store.root}"\ncold_cache_max_bytes = "7B"\n')
    text = ok(runner.invoke(app, ["cache", "stats", "--json", "--config", str(config)]))
    assert json.loads(text)["directory"] == str(store.root)
    assert json.loads(text)["budget_bytes"] == 7
    sets = ["--set", f"cache.cold_dir={store.root}"]
    assert json.loads(ok(runner.invoke(app, ["cache", "stats", "--json", *sets])))["blocks"] == 5


# verify


def test_verify_is_content_with_what_was_written(store: Store) -> None:
    assert "5 blocks checked: all as they were written." in ok(cache(store, "verify"))


def test_verify_reports_by_reason_and_leaves_all(store: Store) -> None:
    first, second, third, *_ = sorted(store.names())
    damage(store.path(first))
    damage(store.path(second))
    os.truncate(store.path(third), 20)
    result = cache(store, "verify")
    assert result.exit_code == 1
    assert "5 blocks checked: 3 damaged." in result.stdout
    assert "digest: 2 blocks\n" in result.stdout
    assert "truncated: 1 block\n" in result.stdout
    assert len(store.names()) == 5


def test_verify_removes_what_is_damaged_when_asked(store: Store) -> None:
    first, *rest = sorted(store.names())
    damage(store.path(first))
    assert "digest: 1 block, removed" in ok(cache(store, "verify", "--delete"))
    assert store.names() == set(rest)
    ok(cache(store, "verify"))


def test_a_block_under_a_wrong_name_is_damaged(store: Store) -> None:
    first, second, *_ = sorted(store.names())
    store.path(first).write_bytes(store.path(second).read_bytes())
    result = cache(store, "verify")
    assert result.exit_code == 1
    assert "key: 1 block\n" in result.stdout


def test_verify_makes_no_secret(store: Store) -> None:
    (store.root / "secret").unlink()
    result = cache(store, "verify")
    assert result.exit_code == 1
    assert "The secret is missing or damaged" in result.stdout
    assert "digest: 5 blocks" in result.stdout
    assert not (store.root / "secret").exists()


# clear


def test_clear_removes_one_model_or_all(store: Store) -> None:
    text = ok(cache(store, "clear", "--model", "gone", "--yes"))
    assert text.startswith("Removed 2 blocks, ")
    assert {name.namespace for name in store.names()} == {namespace_id("here")}
    assert ok(cache(store, "clear", "--yes")).startswith("Removed 3 blocks, ")
    assert sorted(path.name for path in store.root.iterdir()) == ["lock", "secret"]


@pytest.mark.parametrize("name", ["here", "org/here", namespace_id("here")])
def test_a_model_goes_by_its_name_path_or_namespace(store: Store, name: str) -> None:
    ok(cache(store, "clear", "--model", name, "-y"))
    assert {found.namespace for found in store.names()} == {namespace_id("gone")}


@pytest.mark.parametrize("name", ["er", "", "*", "/", "other/here"])
def test_an_unknown_model_is_refused_with_those_that_are_there(store: Store, name: str) -> None:
    result = cache(store, "clear", "--model", name, "--yes")
    assert result.exit_code == 2
    assert f"nothing is stored for {name}" in result.stderr
    assert "gone, here" in result.stderr
    assert len(store.names()) == 5


def test_without_a_terminal_it_asks_for_a_yes(store: Store) -> None:
    result = cache(store, "clear")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert len(store.names()) == 5


@pytest.mark.parametrize("answer", ["n", "y"])
def test_at_a_terminal_it_asks_first(store: Store, answer: str) -> None:
    terminal, ours = pty.openpty()
    try:
        os.write(terminal, f"{answer}\n".encode())
        done = subprocess.run(
            [sys.executable, "-m", "omlx_server", "cache", "clear", "--dir", str(store.root)],
            cwd=ROOT,
            stdin=ours,
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        os.close(terminal)
        os.close(ours)
    assert "Remove 5 blocks of gone, here" in done.stderr
    assert done.returncode == (0 if answer == "y" else 1), done.stderr
    assert len(store.names()) == (0 if answer == "y" else 5)


def test_nothing_foreign_is_ever_deleted(store: Store) -> None:
    space = store.root / namespace_id("here")
    shard = next(path for path in space.iterdir() if path.is_dir())
    foreign = [
        store.root / "notes.txt",
        store.root / "photos" / "cat.jpg",
        space / "README",
        shard / "mine.safetensors",
        shard / f"{'0' * 63}.safetensors",
    ]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    damage(store.path(sorted(store.names())[0]))
    for command in ("verify --delete", "trim --to 0", "clear --yes"):
        ok(cache(store, *command.split()))
    assert [path.read_text() for path in foreign] == ["mine"] * len(foreign)
    assert store.names() == set()


# trim


def test_trim_keeps_what_fits_the_budget(store: Store) -> None:
    assert "Nothing to remove" in ok(cache(store, "trim"))
    assert len(store.names()) == 5


def test_trim_begins_with_models_that_are_gone(store: Store) -> None:
    block = store.nbytes() // 5
    assert "Removed 2 blocks" in ok(cache(store, "trim", "--to", f"{4 * block - 1}B"))
    assert {name.namespace for name in store.names()} == {namespace_id("here")}


def test_ends_of_chains_go_before_their_beginnings(home: Path) -> None:
    store = Store(home / "kv")
    old = store.add_chain("model", 3)
    new = store.add_chain("model", 2, first_token=100)
    largest = max(found.nbytes for found in store.files.scan())
    expected = [old[2], old[1], old[0], new[1], new[0]]
    for index, name in enumerate(expected):
        left = set(expected[index:])
        assert store.names() == left
        ok(cache(store, "trim", "--to", f"{store.nbytes() - 1}B"))
        assert store.names() == left - {name}, f"after {index} of at most {largest} bytes"


def test_a_use_of_the_end_keeps_the_whole_chain(home: Path) -> None:
    store = Store(home / "kv")
    old = store.add_chain("model", 2)
    new = store.add_chain("model", 2, first_token=100)
    store.use(old[1])
    ok(cache(store, "trim", "--to", f"{2 * store.nbytes() // 4}B"))
    assert store.names() == set(old), f"{new} were not used since"


def test_trim_goes_by_the_budget_of_the_settings(store: Store) -> None:
    ok(cache(store, "trim", "--set", "cache.cold_cache_max_bytes=0"))
    assert store.names() == set()


@pytest.mark.parametrize("size", ["much", "-1", "5 parsec", "", "5"])
def test_a_size_that_is_none_is_refused(store: Store, size: str) -> None:
    result = cache(store, "trim", f"--to={size}")
    assert result.exit_code == 2
    assert "expected a size" in result.stderr


# Beside a server


def test_beside_a_server_looking_works_and_removing_is_refused(store: Store) -> None:
    name = sorted(store.names())[0]
    with locked(store.root):
        ok(cache(store, "stats"))
        ok(cache(store, "verify"))
        damage(store.path(name))
        assert cache(store, "verify").exit_code == 1
        for command in ("verify --delete", "clear --yes", "trim --to 0"):
            result = cache(store, *command.split())
            assert result.exit_code == 2
            error, hint = result.stderr.splitlines()[-2:]
            assert error.startswith("error: a running server uses")
            assert hint.startswith("hint: stop it") and "/v1/cache/reset" in hint
        assert len(store.names()) == 5
    ok(cache(store, "clear", "--yes"))


# The program


def test_the_real_program_shows_it_without_mlx(store: Store) -> None:
    code = (
        "import atexit, sys\n"
        "heavy = lambda: sys.stderr.write(' '.join({m.split('.')[0] for m in sys.modules}))\n"
        "atexit.register(heavy)\n"
        f"sys.argv = ['omlx-server', 'cache', 'stats', '--dir', {str(store.root)!r}]\n"
        "from omlx_server.__main__ import main\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "5 blocks" in done.stdout
    assert not set(done.stderr.split()) & HEAVY


@pytest.mark.parametrize("command", ["stats", "verify", "clear", "trim"])
def test_every_help_teaches_by_example(command: str) -> None:
    assert "Example" in ok(runner.invoke(app, ["cache", command, "--help"]))
