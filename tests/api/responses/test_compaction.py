"""Conversations made shorter: what stays, what stands for the rest, and who may read that."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from omlx_server.api.responses.answers import InputItem
from omlx_server.api.responses.items.items import ItemIds, stored_form
from omlx_server.api.responses.items.messages import chat_messages
from omlx_server.api.responses.items.seals import SummarySeals, summary_text
from omlx_server.api.responses.tool_names import ToolNames
from omlx_server.errors import BadRequest
from tests.api.conftest import CHATML
from tests.api.harness import UNPROBED, Json, ServerProcess, assert_envelope, serving
from tests.api.responses import judge
from tests.api.responses.asking import RESPONSES, ask, ask_streaming, body, get, post
from tests.api.responses.made import ID, asked
from tests.text import makers
from tests.tiny_models import save_tiny

COMPACT = f"{RESPONSES}/compact"
ALICE, BOB = "alice-key", "bob-key"
TALK: list[Json] = [
    {"role": "developer", "content": "Speak plainly."},
    {"role": "user", "content": "We launch on Tuesday."},
    {"role": "assistant", "content": "Understood."},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "It rains. " * 20},
    {"role": "user", "content": "Tell support first."},
]


def compact(server: ServerProcess, key: str = "x", **fields: Any) -> Json:
    answer = post(server, {"model": server.model, "input": TALK, **fields}, COMPACT, key)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    judge.compaction(found)
    return found


def said(items: list[Json]) -> list[tuple[str, str]]:
    return [(item["role"], item["content"][0]["text"]) for item in items]


def read(*items: Json) -> list[Json]:
    known: dict[str, InputItem] = {}
    given = asked(input=list(items)).input
    return chat_messages(None, stored_form(given, ItemIds(ID), known.__getitem__), ToolNames())


# -- what comes ------------------------------------------------------------------------------


def test_instructions_and_users_stay_and_one_item_stands_for_the_rest(tiny: ServerProcess) -> None:
    found = compact(tiny)
    *kept, last = found["output"]
    assert said(kept) == [(i["role"], i["content"]) for i in (TALK[0], TALK[1], TALK[5])]
    assert last["type"] == "compaction" and last["id"].startswith("cmp_")
    assert summary_text(last["encrypted_content"]).strip()


def test_the_model_that_is_asked_writes_the_summary(tiny: ServerProcess) -> None:
    """Greedily, and no longer than what it stands for."""
    first, again = compact(tiny), compact(tiny)
    summaries = [summary_text(one["output"][-1]["encrypted_content"]) for one in (first, again)]
    assert summaries[0] == summaries[1]
    usage = first["usage"]
    assert 0 < usage["output_tokens"] <= 1024 // 4 < usage["input_tokens"]
    assert again["usage"]["input_tokens_details"]["cached_tokens"] > 0


def test_a_later_request_reads_it_and_is_stored_with_it(tiny: ServerProcess) -> None:
    made = compact(tiny)["output"]
    items = [*made, {"role": "user", "content": "Go on."}]
    first = ask(tiny, input=items)
    texts = [said(made[:1])[0], ("user", "We launch on Tuesday.\n\nTell support first.")]
    summary = summary_text(made[-1]["encrypted_content"])
    plain = [*texts, ("assistant", summary), ("user", "Go on.")]
    told = [{"role": role, "content": content} for role, content in plain]
    assert first["usage"]["input_tokens"] == ask(tiny, input=told)["usage"]["input_tokens"]
    ask(tiny, previous_response_id=first["id"], input="And on.")
    kept = get(tiny, f"{first['id']}/input_items?order=asc").json()
    judge.item_list(kept)
    assert kept["data"][:-1] == made
    ask_streaming(tiny, input=items)


def test_a_stored_conversation_is_compacted_by_its_name(tiny: ServerProcess) -> None:
    first = ask(tiny, input="We launch on Tuesday.")
    made = compact(tiny, input=None, previous_response_id=first["id"])["output"]
    assert said(made[:-1]) == [("user", "We launch on Tuesday.")]
    again = compact(tiny, input=[*made, {"role": "user", "content": "Go on."}])["output"]
    assert [item["type"] for item in again] == ["message", "message", "compaction"]


def test_a_conversation_that_outgrew_the_context_is_compacted(tiny: ServerProcess) -> None:
    turn = [{"role": "user", "content": "A" * 300}, {"role": "assistant", "content": "B" * 300}]
    fields = {"model": tiny.model, "input": [*turn * 20, *TALK]}
    assert_envelope(post(tiny, body(tiny, **fields)), 400)
    answer = post(tiny, fields, COMPACT)
    assert answer.status_code == 200 and int(answer.headers["x-omlx-dropped-messages"]) > 0
    assert len(answer.json()["output"]) == 20 + 4


def test_what_an_agent_sends_along_is_taken(tiny: ServerProcess) -> None:
    """No tool is called, and no format is forced upon the summary."""
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    more: Json = {
        "instructions": "You are an agent.",
        "tools": [tool, {"type": "web_search"}],
        "tool_choice": "required",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "high", "summary": "auto"},
        "text": {"format": {"type": "json_object"}},
        "prompt_cache_key": "thread",
    }
    made = compact(tiny, **more)["output"]
    assert not summary_text(made[-1]["encrypted_content"]).startswith("{")


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": None}, 400, "model"),
        ({"model": "nobody"}, 404, "model"),
        ({"input": None}, 400, "input"),
        ({"previous_response_id": "resp_" + "0" * 32}, 400, "previous_response_id"),
        ({"conversation": "c"}, 400, "conversation"),
    ],
)
def test_what_can_not_be_compacted_is_refused(
    tiny: ServerProcess, fields: Json, status: int, param: str
) -> None:
    answer = post(tiny, {"model": tiny.model, "input": TALK, **fields}, COMPACT)
    assert assert_envelope(answer, status)["param"] == param


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with keys. Besides the tiny model there is one that has nothing to say: every token
    ends its answer."""
    models = tmp_path_factory.mktemp("models")
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    for name in ("tiny", "silent"):
        path = makers.save(models / "org" / name, "byte_level", CHATML)
        save_tiny(path, "llama", vocab_size=vocab)
    ends = {"eos_token_id": list(range(vocab))}
    (models / "org" / "silent" / "generation_config.json").write_bytes(orjson.dumps(ends))
    sets = [f"models.dirs={models}", UNPROBED, f"auth.api_keys={ALICE},{BOB}"]
    with serving("org/tiny", tmp_path_factory.mktemp("keyed"), *sets) as server:
        yield server


def test_a_model_that_writes_nothing_has_compacted_nothing(keyed: ServerProcess) -> None:
    answer = post(keyed, {"model": "org/silent", "input": TALK}, COMPACT, ALICE)
    assert "no summary" in assert_envelope(answer, 500)["message"]


# -- who may read it -------------------------------------------------------------------------


def test_what_one_key_has_made_no_other_can_use(keyed: ServerProcess) -> None:
    made = compact(keyed, ALICE)["output"]
    for path in (RESPONSES, COMPACT, f"{RESPONSES}/input_tokens"):
        asked = {"model": keyed.model, "input": made}
        assert post(keyed, asked, path, ALICE).status_code == 200
        assert assert_envelope(post(keyed, asked, path, BOB), 400)["param"] == "input"


SEALS = SummarySeals(b"a key")


@pytest.mark.parametrize("text", ["", "Hi", "größe\0\n", "x" * 10_000, "\ud800"])
def test_what_was_sealed_is_read(text: str) -> None:
    sealed = SEALS.seal(text)
    SummarySeals(b"a key").check(sealed, "input")
    assert summary_text(sealed) == text.encode(errors="replace").decode()


def test_every_change_is_seen() -> None:
    """Also of the last letter, some of whose bits say nothing."""
    sealed = SEALS.seal("Hi")
    changed = {
        sealed[:place] + letter + sealed[place + 1 :]
        for place in range(len(sealed))
        for letter in "AQgw_.=\n"
    }
    cut = {sealed[:place] for place in range(len(sealed))}
    for wrong in {*changed, *cut, sealed + "A", sealed + "=", f" {sealed}"} - {sealed}:
        with pytest.raises(BadRequest, match="damaged"):
            SEALS.check(wrong, "input")


@pytest.mark.parametrize("other", [b"", b"another", b"a key "])
def test_another_key_opens_nothing(other: bytes) -> None:
    with pytest.raises(BadRequest, match="another API key"):
        SummarySeals(other).check(SEALS.seal("Hi"), "input")


# -- the chat --------------------------------------------------------------------------------


def test_a_summary_answers_all_that_the_user_said_before_it() -> None:
    """One turn of each: many templates want the roles to alternate."""
    item = {"type": "compaction", "encrypted_content": SEALS.seal("In short.")}
    users = [{"role": "user", "content": text} for text in ("a", "b")]
    assert read(*users, item, users[0]) == [
        {"role": "user", "content": "a\n\nb"},
        {"role": "assistant", "content": "In short."},
        {"role": "user", "content": "a"},
    ]
    system = {"role": "system", "content": "s"}
    assert [m["role"] for m in read(system, item)] == ["system", "assistant"]
