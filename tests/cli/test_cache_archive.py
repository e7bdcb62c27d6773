"""`omlx-server cache export` and `import` on real directories and a real tokenizer: what goes out,
what comes in, what is refused; and a conversation that goes on after the journey."""

import gzip
import io
import json
import os
import random
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from omlx_server.api.chat.prompt import template_messages
from omlx_server.api.chat.request import ChatRequest
from omlx_server.cli.app import app
from omlx_server.cli.cache.export import tokens_of_conversation
from omlx_server.core.blocks.keys import BlockKey, namespace_id, root_key
from omlx_server.core.blocks.pins import Pin
from omlx_server.core.blocks.record import PackedArrays, Record, RecordKind, RecordTensor
from omlx_server.store.archives.archive import (
    ArchiveMember,
    ArchiveOrigin,
    read_archive,
    write_archive,
)
from omlx_server.store.block_file import decode, encode
from omlx_server.store.files import PINS, Files, NamespaceDescription
from omlx_server.store.mediums.medium import Name
from omlx_server.store.pin_file import pins_as_bytes
from omlx_server.store.secret import load_secret
from omlx_server.text.dialect import PromptRenderer, dialect_of
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer
from tests.api.conftest import CHATML
from tests.api.harness import UNPROBED, Json, ServerProcess, serving, text_of
from tests.cli.locking import locked
from tests.text import makers
from tests.tiny_models import save_tiny

ROOT = Path(__file__).parents[2]
HEAVY = {"mlx", "mlx_lm", "fastapi", "uvicorn", "httpx"}
SIZE = 4
TEXT = "The quick brown fox jumps over the lazy dog, and over another one. "
TALK = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": "It does."}]
Blocks = list[tuple[Record, PackedArrays]]
runner = CliRunner()


def packed(seed: int) -> PackedArrays:
    return PackedArrays(
        [RecordTensor("F32", (4, 64), random.Random(seed).randbytes(1024))], (((0, 0),),)
    )


def prefix(
    space: str,
    tokens: Sequence[int],
    *,
    salt: bytes = b"",
    states: Sequence[int] = (),
    size: int = SIZE,
) -> Blocks:
    """Blocks of all tokens, the last one short where it does not come out even, and states."""
    parents: list[BlockKey] = [root_key(space, salt)]
    blocks: Blocks = []
    for start in range(0, len(tokens), size):
        record = Record(space, parents[-1], start, tuple(tokens[start : start + size]))
        blocks.append((record, packed(start)))
        parents.append(record.key)
    for stop in states:
        start = (stop - 1) // size * size
        own = tuple(tokens[start:stop])
        record = Record(space, parents[start // size], start, own, RecordKind.CHECKPOINT, 2)
        blocks.append((record, packed(1000 + stop)))
    return blocks


def contents(blocks: Blocks) -> list[tuple[object, ...]]:
    return [
        (r, p.places, *((t.dtype, t.shape, bytes(t.data)) for t in p.tensors)) for r, p in blocks
    ]


class Store:
    """A cold directory, filled as a server would fill it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = Files(root)
        self._now = 1_700_000_000.0

    def describe(self, space: str, path: Path | str, size: int = SIZE) -> None:
        name = Path(path).name or "somewhere"
        self.files.write_description(
            NamespaceDescription(space, name, str(path), size, 1_700_000_000.0)
        )

    def put(self, blocks: Blocks) -> list[Name]:
        """Each is used a second after the one before."""
        names = []
        for record, held in blocks:
            name = Name.of(namespace_id(record.namespace), record.key)
            self.files.put(name, encode(record, held, load_secret(self.root)))
            self._now += 1
            self.files.touch(name, self._now)
            names.append(name)
        return names

    def blocks(self, space: str) -> dict[Name, tuple[Record, PackedArrays]]:
        """All that is there, verified."""
        found = {}
        for block in self.files.scan(namespace_id(space)):
            data = self.files.get(block.name)
            assert data is not None
            found[block.name] = decode(data, load_secret(self.root), block.name)
        return found

    def names(self) -> set[Name]:
        return {found.name for found in self.files.scan()}

    def nbytes(self) -> int:
        return sum(found.nbytes for found in self.files.scan())

    def path(self, name: Name) -> Path:
        return self.root / name.namespace / name.key[:2] / f"{name.key}.safetensors"

    def damage(self, name: Name) -> None:
        data = bytearray(self.path(name).read_bytes())
        data[-1] ^= 1
        self.path(name).write_bytes(data)

    def pin(self, records: Sequence[Record]) -> None:
        keys = tuple(record.key for record in records)
        pin = Pin("pin", records[0].namespace, records[0].parent, 0, 0.0, keys)
        self.files.write_small(PINS, pins_as_bytes([pin]))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its tokenizer is all that is needed of a model."""
    return makers.save(tmp_path_factory.mktemp("models") / "org" / "tiny", "byte_level", CHATML)


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.load(model)


@pytest.fixture
def store(tmp_path: Path, model: Path) -> Store:
    store = Store(tmp_path / "kv")
    store.describe(SPACE, model)
    return store


SPACE = f"{'a' * 64}|v1:kv,kv|{SIZE}"


def cache(store: Store | Path, command: str, *arguments: str | Path, stdin: str = "") -> Result:
    root = store.root if isinstance(store, Store) else store
    words = ["cache", command, *map(str, arguments), "--dir", str(root)]
    free = ["--set", "cache.cold_min_free_disk=0"]
    return runner.invoke(app, [*words, *free], input=stdin)


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def error_of(result: Result, code: int) -> str:
    """The one line of an error."""
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    return line.removeprefix("error: ")


def write(name: str, content: object) -> str:
    text = content if isinstance(content, str) else json.dumps(content)
    Path(name).write_text(text, encoding="utf-8")
    return name


def read(path: Path | str) -> tuple[ArchiveOrigin, Blocks]:
    with Path(path).open("rb") as source:
        archive = read_archive(source, max_bytes=1 << 30)
        return archive.manifest.about, list(archive)


def archive_of(blocks: Blocks, name: str = "X", **changes: object) -> str:
    about = ArchiveOrigin(blocks[0][0].namespace, "org/tiny", SIZE, 1_700_000_000)
    with Path(name).open("wb") as out:
        about = replace(about, **changes)  # type: ignore[arg-type]
        write_archive(out, about, [ArchiveMember.of(record, held) for record, held in blocks])
    return name


def prompt_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    return tuple(tokenizer.encode(TEXT))


# export


def test_a_prompt_goes_out_to_its_last_token(store: Store, tokenizer: Tokenizer) -> None:
    tokens = prompt_tokens(tokenizer)
    blocks = prefix(SPACE, tokens)
    assert len(tokens) % SIZE, "the tail is to be a short one"
    store.put(blocks)
    store.put(prefix(SPACE, (*tokens[:6], 1, 2, 3, 4, 5, 6)))
    text = ok(cache(store, "export", "--prompt", write("p", TEXT), "-o", "X"))
    about, found = read("X")
    assert contents(found) == contents(blocks)
    assert (about.namespace, about.model, about.block_size) == (SPACE, "tiny", SIZE)
    size = Path("X").stat().st_size
    total = len(tokens)
    assert text.startswith(f"{total} of {total} prompt tokens of tiny, {len(blocks)} blocks, ")
    assert text.endswith(f"{size / 1000:.1f} kB, are in X.\n")
    assert stat.S_IMODE(Path("X").stat().st_mode) == 0o600
    assert [path.name for path in Path().glob(".*")] == [".config"]


def test_what_it_says_is_there_as_json_too(store: Store, tokenizer: Tokenizer) -> None:
    tokens = prompt_tokens(tokenizer)
    store.put(prefix(SPACE, tokens[:8], states=(6,)))
    said = json.loads(ok(cache(store, "export", "--prompt", write("p", TEXT), "-o", "X", "--json")))
    assert said == {
        "archive": "X",
        "model": "tiny",
        "namespace": namespace_id(SPACE),
        "prompt_tokens": len(tokens),
        "tokens": 6,
        "blocks": 2,
        "states": 1,
        "bytes": Path("X").stat().st_size,
    }


def test_a_block_that_goes_on_otherwise_stays(store: Store, tokenizer: Tokenizer) -> None:
    """Its first tokens could serve, but the others are of another conversation."""
    tokens = prompt_tokens(tokenizer)
    blocks = prefix(SPACE, tokens[:8])
    store.put(blocks)
    store.put(prefix(SPACE, (*tokens[:10], 7, 7))[2:])
    ok(cache(store, "export", "--prompt", write("p", TEXT), "-o", "X"))
    assert contents(read("X")[1]) == contents(blocks)


def test_only_what_is_whole_goes_out(store: Store, tokenizer: Tokenizer) -> None:
    tokens = prompt_tokens(tokenizer)
    blocks = prefix(SPACE, tokens)
    names = store.put(blocks)
    short = prefix(SPACE, tokens[:11])[2:]
    store.put(short)
    store.damage(names[2])
    text = ok(cache(store, "export", "--prompt", write("p", TEXT), "-o", "X"))
    assert text.startswith("11 of ")
    assert contents(read("X")[1]) == contents([*blocks[:2], *short])


def test_the_deepest_state_goes_along_with_what_it_needs(
    store: Store, tokenizer: Tokenizer
) -> None:
    tokens = prompt_tokens(tokenizer)
    blocks = prefix(SPACE, tokens[:12], states=(4, 7, 8))
    store.put(blocks)
    text = ok(cache(store, "export", "--prompt", write("p", TEXT), "-o", "X"))
    assert text.startswith("8 of ") and "2 blocks and a state" in text
    assert contents(read("X")[1]) == contents([*blocks[:2], blocks[-1]])


def test_the_salt_of_others_is_out_of_reach(store: Store, tokenizer: Tokenizer) -> None:
    store.put(prefix(SPACE, prompt_tokens(tokenizer), salt=b"theirs"))
    result = cache(store, "export", "--prompt", write("p", TEXT), "-o", "X")
    assert "nothing of this is stored for tiny" in error_of(result, 1)
    assert "/v1/cache/export" in result.stderr
    assert not Path("X").exists()


def test_a_prompt_may_have_come_with_the_token_that_begins(
    store: Store, tokenizer: Tokenizer
) -> None:
    begin = tokenizer.token_id(makers.CHATML_SPECIALS[0])
    assert begin is not None
    tokens = (begin, *prompt_tokens(tokenizer))
    store.put(prefix(SPACE, tokens))
    text = ok(cache(store, "export", "--prompt", write("p", TEXT), "-o", "X"))
    assert text.startswith(f"{len(tokens)} of {len(tokens)} prompt tokens")
    rendered = write("q", makers.CHATML_SPECIALS[0] + TEXT)
    assert ok(cache(store, "export", "--prompt", rendered, "-o", "X")) == text


def test_a_conversation_is_what_its_next_turn_sends(store: Store, tokenizer: Tokenizer) -> None:
    template = ChatTemplate(tokenizer)
    tokens = template.encode([*TALK, {"role": "user", "content": "Why?"}])
    past = len(template.encode(TALK, add_generation_prompt=False))
    store.put(prefix(SPACE, tokens))
    text = ok(cache(store, "export", "--conversation", write("c", TALK), "-o", "X"))
    assert text.startswith(f"{past // SIZE * SIZE} of {past} prompt tokens")
    body = {"model": "tiny", "messages": TALK, "temperature": 0}
    assert ok(cache(store, "export", "--conversation", write("c", body), "-o", "X")) == text
    piped = cache(store, "export", "--conversation", "-", "-o", "X", stdin=json.dumps(TALK))
    assert ok(piped) == text
    question = ok(cache(store, "export", "--conversation", write("c", TALK[:1]), "-o", "X"))
    assert f" of {len(template.encode(TALK[:1]))} prompt tokens" in question


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CONVERSATIONS: dict[str, list[dict[str, object]]] = {
    "parts": [{"role": "user", "content": [{"type": "text", "text": text} for text in "ab"]}],
    "developer": [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "a"}],
    "billing": [
        {"role": "system", "content": "x-anthropic-billing-header: 17"},
        {"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header: 18"}]},
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "x-anthropic-billing-header: mine"},
    ],
    "billing alone": [{"role": "system", "content": "x-anthropic-billing-header: 17"}],
    "empty system": [{"role": "system", "content": ""}, {"role": "user", "content": ""}],
    "tool": [
        {"role": "user", "content": "a", "name": "me", "more": "ignored"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "b", "tool_call_id": "1", "name": None},
        {"role": "assistant", "content": "c", "reasoning_content": "d"},
        {"role": "user", "content": "<|im_start|>"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", CONVERSATIONS)
def test_messages_make_the_tokens_that_the_api_makes_of_them(
    model: Path, tokenizer: Tokenizer, case: str
) -> None:
    given = CONVERSATIONS[case]
    chat = ChatRequest.model_validate({"model": "tiny", "messages": given})
    template = ChatTemplate(tokenizer)
    prompts = PromptRenderer(template, dialect_of(tokenizer, template.render), [], {})
    expected = prompts.tokenize(prompts.fitted(template_messages(chat)))
    assert tokens_of_conversation(model, write("c", given)) == [tuple(expected)]


def test_what_a_request_says_to_the_template_counts(tmp_path: Path) -> None:
    template = CHATML + "{{ enable_thinking }}{{ reasoning_effort }}"
    model = makers.save(tmp_path / "thinker", "byte_level", template)
    own = ChatTemplate(Tokenizer.load(model))
    cases: list[tuple[Json, Json]] = [
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"chat_template_kwargs": {"enable_thinking": True}}, {"enable_thinking": True}),
    ]
    for fields, kwargs in cases:
        body = {"messages": TALK[:1], **fields}
        expected = tuple(own.encode(TALK[:1], kwargs=kwargs))
        assert tokens_of_conversation(model, write("c", body)) == [expected]


def test_of_several_models_one_has_to_be_named(
    store: Store, tokenizer: Tokenizer, tmp_path: Path, model: Path
) -> None:
    tokens = prompt_tokens(tokenizer)
    store.put(prefix(SPACE, tokens))
    shutil.copytree(model, tmp_path / "other")
    store.describe("other|kv|4", tmp_path / "other")
    store.put(prefix("other|kv|4", tokens[:8]))
    store.describe("empty|kv|4", model)
    asked = ("--prompt", write("p", TEXT), "-o", "X")
    result = cache(store, "export", *asked)
    assert error_of(result, 2) == "2 models or formats are there"
    assert f"{namespace_id(SPACE)} (tiny)" in result.stderr
    assert namespace_id("empty|kv|4") not in result.stderr
    for name in ("other", namespace_id("other|kv|4"), tmp_path / "other"):
        assert ok(cache(store, "export", *asked, "--model", name)).startswith("8 of ")
    assert ok(cache(store, "export", *asked, "--model", "org/tiny")).startswith(f"{len(tokens)} of")
    assert "nothing is stored for nobody" in error_of(
        cache(store, "export", *asked, "--model", "nobody"), 2
    )


@pytest.mark.parametrize("path", ["", "gone", None])
def test_a_model_without_a_tokenizer_can_not_be_asked(
    tmp_path: Path, tokenizer: Tokenizer, path: str | None
) -> None:
    store = Store(tmp_path / "kv")
    store.put(prefix(SPACE, prompt_tokens(tokenizer)))
    if path is not None:
        store.describe(SPACE, tmp_path / path if path else "")
    problem = error_of(cache(store, "export", "--prompt", write("p", TEXT), "-o", "X"), 1)
    assert "tokenizer" in problem


def test_without_its_secret_nothing_can_be_used(store: Store, tokenizer: Tokenizer) -> None:
    store.put(prefix(SPACE, prompt_tokens(tokenizer)))
    (store.root / "secret").unlink()
    result = cache(store, "export", "--prompt", write("p", TEXT), "-o", "X")
    assert "the secret" in error_of(result, 1)
    assert not (store.root / "secret").exists()


def test_a_directory_that_is_not_there_is_not_made(home: Path) -> None:
    result = cache(home / "nowhere", "export", "--prompt", write("p", TEXT), "-o", "X")
    assert error_of(result, 1) == f"nothing is stored in {home / 'nowhere'}"
    assert not (home / "nowhere").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("-o X", "what is to be exported?"),
        ("--prompt p --conversation p -o X", "what is to be exported?"),
        ("--prompt p -o nowhere/X", "nowhere is not a directory"),
        ("--prompt p -o kv", "kv is there, and is not a file"),
        ("--prompt p -o /dev/null", "/dev/null is there, and is not a file"),
        ("--prompt nowhere -o X", "nowhere can't be read: No such file"),
        ("--prompt binary -o X", "binary is not UTF-8 text"),
        ("--conversation p -o X", "p, line 1, column 1: no JSON"),
        ("--conversation deep -o X", "deep: no JSON that makes sense"),
        ("--conversation empty -o X", "empty holds no messages"),
        ("--conversation number -o X", "number holds no messages"),
        ("--conversation role -o X", "role: message 1 has no role"),
        ("--conversation image -o X", "image: message 0 holds more than text"),
    ],
)
def test_what_is_asked_wrongly_is_said_in_a_line(
    store: Store, tokenizer: Tokenizer, arguments: str, says: str
) -> None:
    store.put(prefix(SPACE, prompt_tokens(tokenizer)))
    before = store.names()
    Path("binary").write_bytes(b"\xff\xfe")
    write("p", TEXT)
    write("deep", "[" * 100_000)
    write("empty", [])
    write("number", "7")
    write("role", [{"role": "user", "content": "a"}, {"content": "b"}])
    write("image", [{"role": "user", "content": [{"type": "image_url"}]}])
    assert says in error_of(cache(store, "export", *arguments.split()), 2)
    assert not Path("X").exists()
    assert store.names() == before


def test_what_the_template_refuses_is_said(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = makers.save(tmp_path / "strict", "byte_level", "{{ raise_exception('no') }}")
    store = Store(tmp_path / "strict-kv")
    store.describe(SPACE, path)
    store.put(prefix(SPACE, prompt_tokens(tokenizer)))
    result = cache(store, "export", "--conversation", write("c", TALK), "-o", "X")
    assert "the chat template refused these messages" in error_of(result, 1)


def test_an_archive_can_go_to_a_pipe(store: Store, tokenizer: Tokenizer) -> None:
    store.put(prefix(SPACE, prompt_tokens(tokenizer)))
    asked = ("--prompt", write("p", TEXT))
    ok(cache(store, "export", *asked, "-o", "X"))
    for more in ((), ("--json",)):
        result = cache(store, "export", *asked, "-o", "-", *more)
        archive = read_archive(io.BytesIO(result.stdout_bytes), max_bytes=1 << 30)
        assert contents(list(archive)) == contents(read("X")[1])
        assert "prompt" in result.stderr


def test_looking_works_beside_a_server(store: Store, tokenizer: Tokenizer) -> None:
    store.put(prefix(SPACE, prompt_tokens(tokenizer)))
    with locked(store.root):
        ok(cache(store, "export", "--prompt", write("p", TEXT), "-o", "X"))


def test_an_export_that_fails_leaves_what_was_there(store: Store, tokenizer: Tokenizer) -> None:
    """As on a full disk: no file may grow beyond 2,000 bytes."""
    store.put(prefix(SPACE, prompt_tokens(tokenizer)))
    write("X", "an older one")
    arguments = ["cache", "export", "--prompt", write("p", TEXT), "-o", "X"]
    done = subprocess.run(
        [sys.executable, "-m", "omlx_server", *arguments, "--dir", str(store.root)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert "error: X can't be written: File too large" in done.stderr
    assert Path("X").read_text() == "an older one"
    assert [path.name for path in Path().glob(".X*")] == []


# import


def test_all_of_an_archive_comes_in(home: Path) -> None:
    """Made under somebody's salt; here it hangs where everybody finds it."""
    tokens = range(10)
    archive_of(prefix(SPACE, tokens, salt=b"theirs", states=(4, 10)))
    text = ok(cache(home / "new", "import", "X"))
    store = Store(home / "new")
    expected = prefix(SPACE, tokens, states=(4, 10))
    found = store.blocks(SPACE)
    assert contents([found[store_name(record)] for record, _ in expected]) == contents(expected)
    assert len(found) == len(expected) == len(store.names())
    about = store.files.describe(namespace_id(SPACE))
    assert about is not None
    assert (about.namespace, about.model, about.path) == (SPACE, "org/tiny", "")
    assert (about.block_size, about.model_is_there) == (SIZE, None)
    size = f"{store.nbytes() / 1000:.1f} kB"
    assert text == (
        f"5 blocks with 10 tokens of org/tiny, {size}: "
        f"5 imported into {home / 'new'}, 0 there already.\n"
    )
    modes = {stat.S_IMODE(p.stat().st_mode) for p in store.root.rglob("*") if p.is_file()}
    assert modes == {0o600}
    ok(cache(store, "verify"))


def store_name(record: Record) -> Name:
    return Name.of(namespace_id(record.namespace), record.key)


def test_what_is_there_already_stays_and_is_as_new(home: Path) -> None:
    blocks = prefix(SPACE, range(10))
    archive_of(blocks)
    store = Store(home / "kv")
    names = store.put(blocks[:2])
    store.damage(names[1])
    said = json.loads(ok(cache(store, "import", "X", "--json")))
    assert said == {
        "archive": "X",
        "directory": str(store.root),
        "model": "org/tiny",
        "namespace": namespace_id(SPACE),
        "tokens": 10,
        "blocks": 3,
        "states": 0,
        "bytes": store.nbytes(),
        "imported": 2,
        "already_there": 1,
        "removed": 0,
        "warnings": said["warnings"],
    }
    (warning,) = said["warnings"]
    assert warning.startswith("no server has used org/tiny with this cache yet")
    assert warning.endswith(f"`omlx-server cache clear --model {namespace_id(SPACE)}` removes them")
    assert set(store.blocks(SPACE)) == {store_name(record) for record, _ in blocks}
    assert all(found.mtime > 1_700_000_100 for found in store.files.scan())
    assert json.loads(ok(cache(store, "import", "X", "--json")))["imported"] == 0


def test_it_goes_there_and_back_again(store: Store, tokenizer: Tokenizer, home: Path) -> None:
    store.put(prefix(SPACE, prompt_tokens(tokenizer), states=(9,)))
    asked = ("--prompt", write("p", TEXT))
    ok(cache(store, "export", *asked, "-o", "X"))
    other = Store(home / "other")
    ok(cache(other, "import", "X"))
    shutil.copy(
        store.root / namespace_id(SPACE) / "namespace.json", other.root / namespace_id(SPACE)
    )
    ok(cache(other, "export", *asked, "-o", "Y"))
    assert contents(read("Y")[1]) == contents(read("X")[1])
    assert set(other.names()) < set(store.names())


def test_nothing_is_kept_before_all_of_it_is_checked(home: Path) -> None:
    archive_of(prefix(SPACE, range(10)))
    data = bytearray(Path("X").read_bytes())
    last = data.rindex(prefix(SPACE, range(10))[-1][1].tensors[0].data[-16:])
    data[last] ^= 1
    Path("X").write_bytes(data)
    problem = error_of(cache(home / "new", "import", "X"), 1)
    assert problem == "X can't be used: block 2 is damaged (digest)"
    assert not (home / "new").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "X can't be read: No such file"),
        (b"", "it is not an archive"),
        (b"hello\n", "it is not an archive"),
        (gzip.compress(b"x" * 20_000, mtime=0), "it is compressed (gzip): unpack it first"),
    ],
)
def test_what_is_no_archive_is_said_in_a_line(home: Path, content: bytes | None, says: str) -> None:
    if content is not None:
        Path("X").write_bytes(content)
    code = 2 if content is None else 1
    assert says in error_of(cache(home / "new", "import", "X"), code)
    assert not (home / "new").exists()


def test_a_directory_is_no_archive(home: Path) -> None:
    assert "is not a file" in error_of(cache(home / "new", "import", str(home)), 2)


def test_beside_a_server_it_is_refused(store: Store) -> None:
    archive_of(prefix(SPACE, range(10)))
    with locked(store.root):
        result = cache(store, "import", "X")
    assert "a running server uses" in error_of(result, 2)
    assert "nothing can be added from outside" in result.stderr
    assert "hint: stop it" in result.stderr and "POST /v1/cache/import" in result.stderr
    assert store.names() == set()


def test_an_archive_larger_than_the_budget_is_refused(store: Store) -> None:
    names = store.put(prefix("other|kv|4", range(20)))
    archive_of(prefix(SPACE, range(20)))
    result = cache(
        store, "import", "X", "--set", f"cache.cold_cache_max_bytes={store.nbytes() - 1}B"
    )
    assert "the cold tier" in error_of(result, 2)
    assert store.names() == set(names)


def test_room_is_made_by_what_was_used_least(store: Store) -> None:
    """Ends before beginnings, and nothing of the prefix itself."""
    own = prefix(SPACE, range(12))
    own_names = store.put(own[:2])
    old = store.put(prefix("other|kv|4", range(12)))
    new = store.put(prefix("other|kv|4", range(50, 62)))
    archive_of(own)
    block = max(found.nbytes for found in store.files.scan())
    budget = store.nbytes() - block + 400  # their headers are not all of one length
    text = ok(cache(store, "import", "X", "--set", f"cache.cold_cache_max_bytes={budget}B"))
    assert "To make room, 2 blocks of " in text
    assert store.names() == {*own_names, store_name(own[2][0]), old[0], *new}
    assert store.nbytes() <= budget


def test_what_is_pinned_stays(store: Store) -> None:
    pinned = prefix("other|kv|4", range(8))
    names = store.put(pinned)
    store.pin([record for record, _ in pinned])
    other = store.put(prefix("another|kv|4", range(8)))
    archive_of(prefix(SPACE, range(8)))
    four = f"cache.cold_cache_max_bytes={store.nbytes() + 400}B"
    ok(cache(store, "import", "X", "--set", four))
    assert set(names) < store.names() and not set(other) & store.names()
    archive_of(prefix(SPACE, range(12)))
    assert "what is pinned there stays" in error_of(cache(store, "import", "X", "--set", four), 1)
    text = ok(cache(store, "trim", "--to", "0"))
    assert "are left because they are pinned" in text
    assert store.names() == set(names)


def test_the_disk_is_not_filled(store: Store) -> None:
    names = store.put(prefix("other|kv|4", range(8)))
    archive_of(prefix(SPACE, range(8)))
    least = ["--set", "cache.cold_min_free_disk=900TB"]
    words = ["cache", "import", "X", "--dir", str(store.root), *least]
    problem = error_of(runner.invoke(app, words), 1)
    assert "would leave less than 900.0 TB of the disk free" in problem
    assert store.names() == set(names)


@pytest.mark.parametrize(
    ("ours", "says"),
    [
        (f"{'b' * 64}|v1:kv,kv|4", "has other weights, another tokenizer or another config"),
        (f"{'a' * 64}|v1:kv,quantized-kv-4b-g64|4", "keeps its KV cache in another format"),
        (f"{'a' * 64}|v1:kv,kv|32", "has blocks of 32 tokens, not 4 (cache.block_tokens)"),
    ],
)
def test_a_model_that_differs_could_never_use_it(
    tmp_path: Path, model: Path, ours: str, says: str
) -> None:
    store = Store(tmp_path / "kv")
    store.describe(ours, model, int(ours.rpartition("|")[2]))
    archive_of(prefix(SPACE, range(8)))
    problem = error_of(cache(store, "import", "X"), 1)
    assert problem.startswith(
        f"org/tiny on this machine {says}, so these blocks would never be used"
    )
    assert store.names() == set()
    result = cache(store, "import", "X", "--force")
    assert ok(result).startswith("2 blocks")
    assert f"warning: org/tiny on this machine {says}" in result.stderr
    assert len(store.names()) == 2


def test_a_model_that_is_the_same_is_no_reason_to_warn(store: Store, model: Path) -> None:
    store.describe("another|v1:kv,kv|4", model)
    archive_of(prefix(SPACE, range(8)))
    assert "warning" not in cache(store, "import", "X").stderr


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("cache.hot_cache_only=true", "cache.hot_cache_only is on"),
        ("cache.enabled=false", "cache.enabled is off"),
        ("cache.remote=redis://box:6379/0", "cache.remote is set"),
    ],
)
def test_a_server_that_would_not_look_here_is_named(store: Store, setting: str, says: str) -> None:
    archive_of(prefix(SPACE, range(8)))
    result = cache(store, "import", "X", "--set", setting)
    ok(result)
    assert f"warning: {says}" in result.stderr
    assert len(store.names()) == 2


def test_a_model_that_is_gone_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "kv")
    store.describe(SPACE, tmp_path / "gone")
    archive_of(prefix(SPACE, range(8)))
    result = cache(store, "import", "X")
    ok(result)
    assert f"warning: org/tiny is gone from {tmp_path / 'gone'}" in result.stderr


def test_an_archive_cannot_write_to_the_terminal(store: Store) -> None:
    archive_of(prefix(SPACE, range(8)), model="a\x1b[2Jb")
    assert "\x1b" not in cache(store, "import", "X").output


# The program


@pytest.mark.parametrize("command", ["export", "import"])
def test_every_help_teaches_by_example(command: str) -> None:
    text = ok(runner.invoke(app, ["cache", command, "--help"]))
    assert "Example" in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_real_program_does_it_without_mlx(store: Store, tokenizer: Tokenizer) -> None:
    store.put(prefix(SPACE, prompt_tokens(tokenizer)))
    code = (
        "import atexit, sys\n"
        "heavy = lambda: sys.stderr.write(' '.join({m.split('.')[0] for m in sys.modules}))\n"
        "atexit.register(heavy)\n"
        "sys.argv = ['omlx-server', 'cache', *sys.argv[1:]]\n"
        "from omlx_server.__main__ import main\n"
        "main()"
    )
    words = [["export", "--prompt", write("p", TEXT), "-o", "X", "--dir", str(store.root)]]
    words += [["import", "X", "--dir", "new", "--set", "cache.cold_min_free_disk=0"]]
    for arguments in words:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert "tokens of tiny" in done.stdout
        assert not set(done.stderr.split()) & HEAVY
        assert "PyTorch" not in done.stderr
    assert Store(Path("new")).names() == store.names()


# The whole way


def test_conversations_go_on_on_another_machine(tmp_path: Path) -> None:
    """Of attention alone, and with recurrent state."""
    models, kinds = tmp_path / "models", ("llama", "lfm2")
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    for kind in kinds:
        path = makers.save(models / "org" / kind, "byte_level", CHATML)
        save_tiny(path, kind, vocab_size=vocab)
    settings = (f"models.dirs={models}", UNPROBED)
    story = "Once upon a time there was a disk that never forgot a block it was given. " * 8
    question = "Which of the blocks does it like best, and why does it not tell anybody? " * 2
    asked: list[Json] = [
        {"role": "system", "content": story},
        {"role": "user", "content": question},
    ]

    with serving("org/llama", tmp_path / "here", *settings) as server:
        first = {kind: ask(server, asked, kind) for kind in kinds}
        assert [cached(answer) for answer in first.values()] == [0, 0]
    here, there = tmp_path / "here" / "kv", tmp_path / "there" / "kv"
    said = {}
    for kind in kinds:
        talk = [*asked, {"role": "assistant", "content": text_of(first[kind])}]
        words = ("--conversation", write("c", talk), "--model", f"org/{kind}", "-o", kind)
        said[kind] = json.loads(ok(cache(here, "export", *words, "--json")))
        out = said[kind]
        assert 0 < out["tokens"] <= out["prompt_tokens"]
        assert bool(out["states"]) == (kind == "lfm2")
        taken = json.loads(ok(cache(there, "import", kind, "--json")))
        came = (taken["tokens"], taken["imported"])
        assert came == (out["tokens"], out["blocks"] + out["states"])

    with serving("org/llama", tmp_path / "there", *settings) as server:
        for kind in kinds:
            again = ask(server, asked, kind)
            assert cached(again) > 0.8 * said[kind]["tokens"]
            assert text_of(again) == text_of(first[kind])


def ask(server: ServerProcess, messages: list[Json], model: str) -> Json:
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 12}
    response = server.post(body)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def cached(answer: Json) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
