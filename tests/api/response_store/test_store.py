"""Stores: bounded by number and size, apart by key, and on disk if asked."""

import asyncio
import os
import stat
import time
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.api.response_store.store import (
    DamagedResponse,
    DiskStore,
    MemoryStore,
    ResponseStore,
)
from omlx_server.api.responses import shapes
from omlx_server.api.responses.answers import InputItem
from omlx_server.api.responses.items.items import ItemIds, new_response_id, stored_form
from omlx_server.api.responses.per_key_store import PerKeyStore, Stored
from omlx_server.api.responses.schema import ResponsesRequest
from omlx_server.core.request import RequestDefaults
from omlx_server.errors import ItemNotFound
from omlx_server.settings.sections import Settings
from omlx_server.wiring.context import make_response_store

NAMES = [f"{n:x}" * 64 for n in range(1, 6)]

steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "get", "delete"]),
        st.sampled_from(NAMES),
        st.sampled_from([0, 1, 1, 2, 6]),
    ),
    max_size=30,
)


class Naive:
    """What a bounded store does, said plainly."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max = (max_entries, max_bytes)
        self.data: OrderedDict[str, bytes] = OrderedDict()

    def put(self, name: str, data: bytes) -> None:
        if len(data) > self._max[1]:
            return
        self.data.pop(name, None)
        self.data[name] = data
        while len(self.data) > self._max[0] or sum(map(len, self.data.values())) > self._max[1]:
            self.data.popitem(last=False)

    def get(self, name: str) -> bytes | None:
        if name in self.data:
            self.data.move_to_end(name)
        return self.data.get(name)

    def delete(self, name: str) -> bool:
        return self.data.pop(name, None) is not None


def agree(store: ResponseStore, script: list[tuple[str, str, int]]) -> Naive:
    naive = Naive(3, 10)
    for verb, name, size in script:
        match verb:
            case "put":
                store.put(name, b"x" * (size * 2))
                naive.put(name, b"x" * (size * 2))
            case "get":
                assert store.get(name) == naive.get(name)
            case _:
                assert store.delete(name) == naive.delete(name)
    return naive


@settings(derandomize=True, max_examples=200, deadline=None)
@given(steps)
def test_the_memory_keeps_what_was_used_last(script: list[tuple[str, str, int]]) -> None:
    store = MemoryStore(3, 10)
    naive = agree(store, script)
    assert {name: store.get(name) for name in NAMES} == {n: naive.data.get(n) for n in NAMES}


@settings(derandomize=True, max_examples=60, deadline=None)
@given(steps)
def test_files_keep_what_was_used_last(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[str, str, int]]
) -> None:
    root = tmp_path_factory.mktemp("files")
    naive = agree(DiskStore(root, 3, 10), script)
    assert {path.stem: path.read_bytes() for path in root.iterdir()} == naive.data


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_use_keeps_a_response_from_going(tmp_path: Path, kind: str) -> None:
    store: ResponseStore = MemoryStore(2, 99) if kind == "memory" else DiskStore(tmp_path, 2, 99)
    for name in NAMES[:2]:
        store.put(name, b"x")
    assert store.get(NAMES[0]) == b"x"
    store.put(NAMES[2], b"x")
    assert [store.get(name) is not None for name in NAMES[:3]] == [True, False, True]


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("nbytes", [1, 400])
def test_a_flood_of_one_owner_leaves_others_their_share(
    tmp_path: Path, kind: str, nbytes: int
) -> None:
    """By number, and by bytes, of which the store takes those of 20 large ones."""
    store: ResponseStore = (
        MemoryStore(20, 8000) if kind == "memory" else DiskStore(tmp_path, 20, 8000)
    )

    def put(number: int, owner: bytes) -> str:
        name = f"{number:064x}"
        store.put(name, b"x" * nbytes, owner)
        return name

    mine = [put(number, b"mine") for number in range(6)]
    flood = [put(100 + number, b"flood") for number in range(60)]
    assert all(store.get(name, b"mine") for name in mine)
    assert [name for name in flood if store.get(name, b"flood")] == flood[-14:]
    mine += [put(number, b"mine") for number in range(6, 30)]
    assert [name for name in mine if store.get(name, b"mine")] == mine[-10:]
    assert [name for name in flood if store.get(name, b"flood")] == flood[-10:]


def test_what_a_client_uses_of_an_earlier_process_counts_in_its_share(tmp_path: Path) -> None:
    before = DiskStore(tmp_path, 4, 99)
    for name in NAMES[:4]:
        before.put(name, b"x", b"mine")
    store = DiskStore(tmp_path, 4, 99)
    assert store.get(NAMES[0], b"mine")
    for number in range(9):
        store.put(f"{number:064x}", b"x", b"flood")
    assert store.get(NAMES[0], b"mine")
    assert sum(store.get(name) is not None for name in NAMES[1:4]) == 1


def test_files_outlive_the_process_in_the_order_of_their_use(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "a" / "b", 9, 999)
    for age, name in enumerate(NAMES[:3]):
        store.put(name, name.encode())
        then = time.time() - 100 - age  # the first is the youngest
        os.utime(tmp_path / "a" / "b" / f"{name}.json", (then, then))
    assert store.get(NAMES[2]) == NAMES[2].encode()
    again = DiskStore(tmp_path / "a" / "b", 2, 999)
    assert [again.get(name) is not None for name in NAMES[:3]] == [True, False, True]


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "new", 9, 999)
    store.put(NAMES[0], b"secret")
    (file,) = (tmp_path / "new").iterdir()
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"x")
    root = tmp_path / "root"
    root.mkdir()
    (root / "notes.json").write_bytes(b"x")
    (root / f"{NAMES[0]}.json").symlink_to(outside)
    os.mkfifo(root / f"{NAMES[1]}.json")
    old, new = root / f".tmp-{'a' * 16}", root / f".tmp-{'b' * 16}"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    store = DiskStore(root, 1, 999)
    assert not old.exists() and new.exists()
    store.put(NAMES[2], b"x")
    store.put(NAMES[3], b"x")
    for name in NAMES[:2]:
        with pytest.raises(DamagedResponse, match="unreadable"):
            store.get(name)
    assert sorted(path.name for path in root.iterdir()) == sorted(
        ["notes.json", f"{NAMES[0]}.json", f"{NAMES[1]}.json", new.name, f"{NAMES[3]}.json"]
    )


def test_a_directory_that_went_away_is_made_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = DiskStore(root, 9, 999)
    root.rmdir()
    assert store.get(NAMES[0]) is None and not store.delete(NAMES[0])
    store.put(NAMES[0], b"x")
    assert store.get(NAMES[0]) == b"x"


def test_a_file_that_has_no_room_costs_no_other_its_place(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 9, 99)
    for name in NAMES[:2]:
        store.put(name, b"x")
    (tmp_path / f"{NAMES[2]}.json").write_bytes(b"x" * 100)
    again = DiskStore(tmp_path, 9, 99)
    assert [again.get(name) for name in NAMES[:3]] == [b"x", b"x", None]


def test_a_disk_that_takes_nothing_costs_what_would_be_kept(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = DiskStore(root, 9, 999)
    root.rmdir()
    root.write_bytes(b"a file in its place")
    store.put(NAMES[0], b"x")
    assert store.get(NAMES[0]) is None


# -- shelves ---------------------------------------------------------------------------------


def example() -> Stored:
    id = new_response_id()
    ids = ItemIds(id)
    asked, defaults = ResponsesRequest(model="m"), RequestDefaults()
    response = shapes.new_response(asked, id, 0, defaults, is_stored=True)
    output = stored_form("Hello", ids, no_item)
    given = stored_form("Hi", ids, no_item)
    response["output"] = [item for item in output if item["type"] == "message"]
    return Stored(response=response, input=given)


def no_item(id: str) -> InputItem:
    raise AssertionError(id)


def test_a_response_is_there_for_its_own_key_only() -> None:
    async def scenario() -> None:
        store = MemoryStore(9, 9999)
        mine, yours = (PerKeyStore(store, key, pytest.fail) for key in ("my key", "your key"))
        stored = example()
        id, item = stored["response"]["id"], stored["input"][0]["id"]
        await mine.put(stored)
        assert await mine.get(id) == stored
        assert await mine.find_item(item) == stored["input"][0]
        assert await yours.get(id) is None and not await yours.delete(id)
        with pytest.raises(ItemNotFound):
            await yours.find_item(item)
        assert await mine.delete(id) and await mine.get(id) is None

    asyncio.run(scenario())


def test_neither_ids_of_other_shapes_nor_torn_files_are_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        reasons: list[str] = []
        store = PerKeyStore(DiskStore(tmp_path, 9, 9999), "", reasons.append)
        stored = example()
        await store.put(stored)
        assert await store.get(stored["response"]["id"]) == stored
        for id in ("", "resp_", "../../etc/passwd", stored["response"]["id"] + "0"):
            assert await store.get(id) is None and not await store.delete(id)
        (file,) = tmp_path.iterdir()
        for torn in (b"", b"[]", b'{"input": []}', file.read_bytes()[:-3]):
            file.write_bytes(torn)
            assert await store.get(stored["response"]["id"]) is None
        assert reasons == ["no_json", "wrong_fields", "wrong_fields", "no_json"]

    asyncio.run(scenario())


# -- settings --------------------------------------------------------------------------------


def test_the_setting_chooses(tmp_path: Path) -> None:
    def chosen(store: str, *, only_memory: bool = False) -> ResponseStore:
        responses = {"store": store, "directory": tmp_path / "dir"}
        cache = {"hot_cache_only": only_memory}
        settings = Settings.of({"responses": responses, "cache": cache})
        return make_response_store(settings)

    assert isinstance(make_response_store(Settings()), MemoryStore)
    assert not chosen("off").is_enabled
    assert isinstance(chosen("disk", only_memory=True), MemoryStore)
    assert not (tmp_path / "dir").exists()
    assert isinstance(chosen("disk"), DiskStore)


def test_a_directory_that_cannot_be_used_costs_the_disk_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    responses = {"store": "disk", "directory": tmp_path / "file" / "dir"}
    settings = Settings.of({"responses": responses})
    assert isinstance(make_response_store(settings), MemoryStore)
