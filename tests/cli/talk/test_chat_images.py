"""Images in a conversation in the terminal: files in, data URLs out, and what is refused."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from omlx_server.cli.app import app
from omlx_server.cli.talk.image import read_image, split_path
from omlx_server.errors import UsageError
from tests.cli.program import HEAVY, imported_by
from tests.images.files import FORMATS, encoded, noise, small

runner = CliRunner()


def chat(url: str, *arguments: str, stdin: str = "") -> Result:
    return runner.invoke(app, ["chat", "--url", url, *arguments], input=stdin)


def sent(result: Result) -> list[list[Any]]:
    """The contents of the messages of each request that the server repeats."""
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    return [[m["content"] for m in json.loads(line)["messages"]] for line in lines]


def part(data: bytes, media: str = "png") -> dict[str, Any]:
    text = base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/{media};base64,{text}"}}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


CAT = encoded(noise(8, 12), "PNG")


@pytest.fixture
def cat(home: Path) -> Path:
    (home / "cat.png").write_bytes(CAT)
    return home / "cat.png"


@pytest.mark.parametrize("kind", FORMATS)
def test_an_image_is_sent_as_a_data_url_with_its_text(
    server_url: str, home: Path, kind: str
) -> None:
    data = small(kind)
    (home / "image").write_bytes(data)
    result = chat(server_url, stdin="/image image repeat\n")
    ((content,),) = sent(result)
    assert content == [part(data, kind.lower()), text("repeat")]


def test_its_kind_and_size_are_told(server_url: str, cat: Path) -> None:
    lines = chat(server_url, stdin="/image cat.png\n").stderr.splitlines()
    assert lines == [
        f"[cat.png: PNG, 12 x 8 pixels, {len(CAT)} bytes; it goes with the next message]"
    ]
    said = chat(server_url, stdin="/image cat.png count\n")
    assert said.stderr.startswith(f"[cat.png: PNG, 12 x 8 pixels, {len(CAT)} bytes]\n[first token")
    assert said.stdout == "1\n"


def test_a_photo_on_its_side_has_the_size_that_is_seen(server_url: str, home: Path) -> None:
    image = Image.fromarray(noise(8, 12))
    exif = Image.Exif()
    exif[0x0112] = 6
    (home / "p.jpg").write_bytes(encoded(image, "JPEG", exif=exif))
    assert "8 x 12 pixels" in chat(server_url, stdin="/image p.jpg\n").stderr


def test_several_go_with_the_next_message_and_stay_in_the_talk(server_url: str, cat: Path) -> None:
    gif = small("GIF")
    (cat.parent / "b.gif").write_bytes(gif)
    result = chat(server_url, stdin="/image cat.png\n/image b.gif\nrepeat\nrepeat\n")
    first, second = sent(result)
    assert first == [[part(CAT), part(gif, "gif"), text("repeat")]]
    assert second[0] == first[0]
    assert second[2] == "repeat"


def test_a_talk_that_is_forgotten_has_no_image(server_url: str, cat: Path) -> None:
    result = chat(
        server_url, stdin="/image cat.png\n/new\nrepeat\n/image cat.png hi\n/new\nrepeat\n"
    )
    assert sent(result) == [["repeat"], ["repeat"]]


@pytest.mark.parametrize("failure", ["refuse", "crash", "cut"])
def test_an_image_that_was_refused_is_not_sent_again(
    server_url: str, cat: Path, failure: str
) -> None:
    result = chat(server_url, stdin=f"/image cat.png\n{failure}\nrepeat\n")
    assert "]\nerror: " in result.stderr
    assert "[the conversation goes on without the image]" in result.stderr
    assert sent(result) == [["repeat"]]
    two = chat(server_url, stdin=f"/image cat.png\n/image cat.png {failure}\nrepeat\n")
    assert "[the conversation goes on without the images]" in two.stderr
    assert "without" not in chat(server_url, stdin="refuse\n").stderr


@pytest.mark.parametrize(
    ("line", "path", "words"),
    [
        ("cat.png", "cat.png", ""),
        ("cat.png  What is  it?", "cat.png", "What is  it?"),
        ('"my cat.png" What?', "my cat.png", "What?"),
        ("'my cat.png'", "my cat.png", ""),
        (r"my\ cat\(1\).png What?", "my cat(1).png", "What?"),
        ("it's.png", "it's.png", ""),
        ("~/cat.png hi", "~/cat.png", "hi"),
    ],
)
def test_a_path_is_read_as_terminals_write_it(line: str, path: str, words: str) -> None:
    assert split_path(line) == (Path(path), words)


@pytest.mark.parametrize("line", ["", '"cat.png"x', "\\"])
def test_a_line_without_a_path_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match="/image needs a file"):
        split_path(line)


def test_the_home_directory_is_known(server_url: str, cat: Path) -> None:
    for path in ("~/cat.png", '"~/cat.png"'):
        assert sent(chat(server_url, stdin=f"/image {path} repeat\n"))


def test_what_is_no_image_is_told_in_a_line_and_the_talk_goes_on(
    server_url: str, home: Path, cat: Path
) -> None:
    (home / "notes.txt").write_text("this is a cat")
    (home / "cut.png").write_bytes(CAT[:40])
    (home / "big.png").write_bytes(CAT + bytes(20 * 1024 * 1024))
    (home / "empty.png").touch()
    lines = ("/image", "/image none.png", "/image notes.txt", "/image cut.png", "/image .")
    result = chat(
        server_url, stdin="\n".join([*lines, "/image big.png", "/image empty.png", "repeat\n"])
    )
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert errors[:2] == [
        "error: /image needs a file",
        "error: none.png: No such file or directory",
    ]
    assert [error.partition(":")[2].split()[0] for error in errors[2:]] == [
        *("notes.txt:", "cut.png:", ".", "big.png", "empty.png:")
    ]
    assert "in no format that is known" in errors[2] and "is cut off" in errors[3]
    assert sent(result) == [["repeat"]]


def test_images_go_with_the_first_question_of_once(server_url: str, cat: Path) -> None:
    images = ("--image", "cat.png", "--image", "~/cat.png")
    result = chat(server_url, *images, "--once", "repeat", "--once", "repeat")
    first, second = sent(result)
    assert first == [[part(CAT), part(CAT), text("repeat")]]
    assert second[2] == "repeat"


def test_a_wrong_image_is_told_before_anything_is_asked(cat: Path) -> None:
    result = chat("http://127.0.0.1:9", "--once", "hello", "--image", "none.png")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: none.png: No such file or directory\n"


def test_a_name_with_control_characters_can_not_move_the_cursor(home: Path) -> None:
    path = home / "a\x1b[2J.png"
    path.write_bytes(CAT)
    assert read_image(path).words.startswith("a?[2J.png: PNG")
    with pytest.raises(UsageError, match="can't be the name of a file"):
        read_image(Path("a\0b"))


def test_help_teaches_it(server_url: str) -> None:
    assert "/image FILE [TEXT]" in chat(server_url, stdin="/help\n").stderr
    result = runner.invoke(app, ["chat", "--help"])
    assert "--image" in result.output and "/image FILE [TEXT]" in result.output


def test_without_an_image_nothing_of_images_is_loaded() -> None:
    assert not imported_by("chat", "--help") & (HEAVY | {"PIL"})
