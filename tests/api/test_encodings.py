"""Bodies that come compressed, and clients that know no chunks: by sockets, of a real server."""

import gzip
import json
import socket
import zlib

import httpx
import pytest

from tests.api.harness import CHAT, Json, ServerProcess, assert_envelope, text_of

TALK = [{"role": "user", "content": "Sing. " * 50}]
LIMIT = 32 * 2**20  # server.max_body_bytes


def bare(data: bytes) -> bytes:
    """A deflate stream without zlib's header, as some clients send it."""
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(data) + stream.flush()


def body(server: ServerProcess, **fields: object) -> bytes:
    asked = {"model": server.model, "messages": TALK, "temperature": 0, "max_tokens": 4, **fields}
    return json.dumps(asked).encode()


def send(server: ServerProcess, content: bytes, coding: str, path: str = CHAT) -> httpx.Response:
    headers = {"content-type": "application/json", "content-encoding": coding}
    return server.http.post(f"{server.url}{path}", content=content, headers=headers)


# -- what comes in ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", bare),
        ("identity", bytes),
        ("", bytes),
    ],
)
def test_a_compressed_body_is_read_as_any_other(tiny: ServerProcess, coding: str, packed) -> None:  # type: ignore[no-untyped-def]
    plain = send(tiny, body(tiny), "").json()
    answer = send(tiny, packed(body(tiny)), coding)
    assert answer.status_code == 200, answer.text
    assert text_of(answer.json()) == text_of(plain)


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages", "/v1/responses"])
def test_every_route_reads_it(tiny: ServerProcess, path: str) -> None:
    content = body(tiny, input="Hi")
    answer = send(tiny, gzip.compress(content), "gzip", path)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "compress", "nonsense"])
def test_what_can_not_be_decoded_is_refused_by_name(tiny: ServerProcess, coding: str) -> None:
    error = assert_envelope(send(tiny, body(tiny), coding), 415)
    assert "gzip or deflate" in error["message"]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("kind", ["plain", "torn", "goes on", "twice"])
def test_what_is_not_what_it_says_is_a_wrong_request(
    tiny: ServerProcess, coding: str, kind: str
) -> None:
    packed = gzip.compress(body(tiny)) if coding == "gzip" else zlib.compress(body(tiny))
    content = {
        "plain": body(tiny),
        "torn": packed[:-9],
        "goes on": packed + b"more",
        "twice": packed * 2,
    }[kind]
    error = assert_envelope(send(tiny, content, coding), 400)
    assert "the body" in error["message"]


@pytest.mark.parametrize(("coding", "packed"), [("gzip", gzip.compress), ("deflate", bare)])
def test_a_bomb_is_too_large_a_body(tiny: ServerProcess, coding: str, packed) -> None:  # type: ignore[no-untyped-def]
    """The bound is that of any body, to the byte."""
    fits = body(tiny).ljust(LIMIT)
    assert send(tiny, packed(fits), coding).status_code == 200
    error = assert_envelope(send(tiny, packed(fits + b" "), coding), 413)
    assert str(LIMIT) in error["message"]
    memory = tiny.memory
    assert_envelope(send(tiny, packed(bytes(16 * LIMIT)), coding), 413)
    assert tiny.memory - memory < 4 * LIMIT


# -- HTTP/1.0 --------------------------------------------------------------------------------------


def ask_old(server: ServerProcess, method: str, path: str, content: bytes = b"") -> bytes:
    """All that comes until the server closes."""
    address = httpx.URL(server.url)
    head = f"{method} {path} HTTP/1.0\r\nHost: {address.host}\r\nConnection: keep-alive\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection((address.host, address.port or 80), timeout=60) as sock:
        sock.sendall(head.encode() + content)
        parts = []
        while part := sock.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def parted(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, content = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (x.partition(": ") for x in lines)}
    return int(first.split()[1]), headers, content


def test_a_stream_for_http_1_0_ends_with_its_connection(tiny: ServerProcess) -> None:
    asked = body(tiny, stream=True, max_tokens=8)
    status, headers, content = parted(ask_old(tiny, "POST", CHAT, asked))
    assert (status, headers["connection"]) == (200, "close")
    assert "transfer-encoding" not in headers and "content-length" not in headers
    text = content.decode()
    assert text.startswith("data: {") and text.endswith("data: [DONE]\n\n")
    events = [json.loads(line[6:]) for line in text.split("\n\n")[:-2] if line[:5] == "data:"]
    said = "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])
    assert said == text_of(send(tiny, body(tiny, max_tokens=8), "").json())


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/no/such"])
def test_an_answer_of_known_length_tells_it(tiny: ServerProcess, path: str) -> None:
    for method in ("GET", "HEAD"):
        _, headers, content = parted(ask_old(tiny, method, path))
        assert "transfer-encoding" not in headers and headers["connection"] == "close"
        assert len(content) == (int(headers["content-length"]) if method == "GET" else 0)


# -- /tokenize, /v1/messages -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"prompt": "a", "content": "b"}, ["prompt", "content"]),
        ({"prompt": "a", "messages": TALK}, ["prompt", "messages"]),
        ({"messages": TALK, "content": ""}, ["messages", "content"]),
        ({"prompt": "a", "messages": TALK, "content": "b"}, ["prompt", "messages", "content"]),
    ],
)
def test_tokenize_says_which_fields_exclude_each_other(
    tiny: ServerProcess, fields: Json, names: list[str]
) -> None:
    answer = tiny.http.post(f"{tiny.url}/tokenize", json=fields)
    error = assert_envelope(answer, 400)
    assert error["message"].startswith(" and ".join(names) + " exclude each other")
    assert error["param"] == names[1]


def test_every_answer_of_the_messages_api_has_its_request_id(tiny: ServerProcess) -> None:
    url = f"{tiny.url}/v1/messages"
    asked = {"model": tiny.model, "messages": TALK, "max_tokens": 2}
    answers = [
        (200, tiny.http.post(url, json=asked)),
        (200, tiny.http.post(url, json={**asked, "stream": True})),
        (200, tiny.http.post(f"{url}/count_tokens", json=asked)),
        (400, tiny.http.post(url, json={})),
        (404, tiny.http.post(url, json={**asked, "model": "nobody"})),
        (404, tiny.http.post(f"{url}/batches", json={})),
        (405, tiny.http.get(url)),
        (415, tiny.http.post(url, content=b"{}", headers={"content-type": "text/plain"})),
        (403, tiny.http.post(url, json=asked, headers={"host": "evil.example"})),
    ]
    for status, answer in answers:
        assert answer.status_code == status
        assert answer.headers["request-id"] == answer.headers["x-request-id"] != ""
    assert "request-id" not in tiny.http.get(f"{tiny.url}/v1/models").headers
