"""What is shared has no paths and no names of the user or the machine."""

import getpass
import socket

import pytest

from omlx_server.doctor.shareable import without_names


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ("/home/ann/models/x can't be read", "PATH can't be read"),
        ("see ~/.cache/kv, or ./x", "see PATH, or PATH"),
        ("it lies in '/Volumes/my disk'", "it lies in 'PATH disk'"),
        ("14.2 tokens/s and 3 / 4 of org/name", "14.2 tokens/s and 3 / 4 of org/name"),
    ],
)
def test_paths_are_replaced_and_nothing_else(text: str, shared: str) -> None:
    assert without_names(text) == shared


def test_names_of_the_user_and_the_machine_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "annabel")
    monkeypatch.setattr(socket, "gethostname", lambda: "studio.local")
    document = {"says": ["annabel@studio.local", {"x": "annabella"}], "n": 1, "none": None}
    assert without_names(document) == {
        "says": ["NAME@NAME", {"x": "annabella"}],
        "n": 1,
        "none": None,
    }
