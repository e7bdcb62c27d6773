"""What a service takes along of the shell's environment, and what it leaves."""

from pathlib import Path

import pytest

from omlx_server.service.environment import Environment, environment_of
from omlx_server.service.launchd import Launchd
from omlx_server.service.steps import describe
from omlx_server.service.systemd import Systemd
from tests.service.made import HOME, KEY, loaded, made

HERE = Path("/work")


def found(**shell: str) -> Environment:
    return environment_of(shell, home=HOME, here=HERE)


def test_paths_addresses_and_certificates_are_taken() -> None:
    shell = {
        "HF_HOME": "/srv/hub",
        "HF_ENDPOINT": "https://mirror.lan",
        "HTTPS_PROXY": "http://proxy.lan:3128",
        "no_proxy": "localhost,.lan",
        "SSL_CERT_FILE": "/etc/lan.pem",
    }
    others = {"PATH": "/bin", "LANG": "C", "AWS_SECRET_ACCESS_KEY": KEY, "HF_DEBUG": "1"}
    taken = found(**shell, **others)
    assert dict(taken.variables) == shell
    assert taken.directories == (Path("/srv/hub"),)
    assert taken.left == ()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("/srv/hub", "/srv/hub"),
        ("hub", "/work/hub"),
        ("../hf/./hub", "/hf/hub"),
        ("~/hub", f"{HOME}/hub"),
        ("~", f"{HOME}"),
    ],
)
def test_paths_are_absolute_as_the_shell_means_them(given: str, meant: str) -> None:
    """The service runs in the home directory."""
    assert dict(found(HF_HOME=given).variables) == {"HF_HOME": meant}


@pytest.mark.parametrize(
    ("shell", "taken"),
    [
        ({"XDG_CACHE_HOME": "/x"}, {"HF_HOME": "/x/huggingface", "XDG_CACHE_HOME": "/x"}),
        ({"XDG_CACHE_HOME": "~/x", "HF_HOME": ""}, {"HF_HOME": f"{HOME}/x/huggingface"}),
        (
            {"XDG_CACHE_HOME": "/x", "HF_HOME": "/srv/hub"},
            {"HF_HOME": "/srv/hub", "XDG_CACHE_HOME": "/x"},
        ),
        ({"XDG_STATE_HOME": "/s", "XDG_CONFIG_HOME": "c"}, {"XDG_STATE_HOME": "/s"}),
        ({"HUGGINGFACE_HUB_CACHE": "/old"}, {"HF_HUB_CACHE": "/old"}),
        ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "/new"}, {"HF_HUB_CACHE": "/new"}),
    ],
)
def test_the_hub_is_where_its_library_looks(shell: dict[str, str], taken: dict[str, str]) -> None:
    environment = found(**shell)
    assert dict(environment.variables) == taken
    hub = [Path(text) for name, text in taken.items() if name.startswith("HF_")]
    assert environment.directories == tuple(hub)


@pytest.mark.parametrize("name", ["HF_HOME", "XDG_CACHE_HOME", "https_proxy", "SSL_CERT_FILE"])
def test_what_is_empty_is_not_there(name: str) -> None:
    assert found(**{name: ""}) == Environment()


@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy", "ALL_PROXY", "HF_ENDPOINT"])
@pytest.mark.parametrize("start", ["http://ann:", "http://", "ann:", "socks5h://a:"])
def test_an_address_with_a_password_is_left_and_told(name: str, start: str) -> None:
    taken = found(**{name: f"{start}{KEY}@proxy.lan:3128"})
    assert taken.variables == ()
    assert len(taken.left) == 1 and f"not see {name}: there is a password" in taken.left[0]
    assert KEY not in taken.left[0]


@pytest.mark.parametrize("name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_a_token_is_never_taken_and_its_place_is_told(name: str) -> None:
    for shell, place in (
        ({}, HOME / ".cache" / "huggingface" / "token"),
        ({"HF_HOME": "/srv/hub"}, Path("/srv/hub/token")),
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/huggingface/token")),
        ({"HF_TOKEN_PATH": "/srv/token"}, Path("/srv/token")),
    ):
        taken = found(**{name: KEY}, **shell)
        assert taken.variables == found(**shell).variables
        assert len(taken.left) == 1 and f"keeps it in {place}, where" in taken.left[0]
        assert KEY not in taken.left[0]


@pytest.mark.parametrize("letter", ["\n", "\x1b", "\udc80"])
def test_what_no_file_can_say_is_left_and_told(letter: str) -> None:
    taken = found(HF_HOME=f"/srv/a{letter}b", https_proxy="http://proxy.lan")
    assert dict(taken.variables) == {"https_proxy": "http://proxy.lan"}
    assert taken.directories == ()
    assert len(taken.left) == 1 and "not see HF_HOME" in taken.left[0]


def test_the_service_may_write_where_the_hub_is(tmp_path: Path) -> None:
    default = HOME / ".cache" / "huggingface"
    plain = made(loaded(tmp_path / "c.toml"))
    assert default in plain.writable and default not in plain.own
    given = made(loaded(tmp_path / "c.toml"), environment=found(HF_HOME="/srv/hub"))
    assert Path("/srv/hub") in given.writable
    assert Path("/srv/hub") in given.own, "it may have to be made first"
    assert default not in given.writable


def test_no_path_goes_up(tmp_path: Path) -> None:
    """systemd ignores one that does."""
    given = made(
        loaded(tmp_path / "c.toml", '[models]\ndirs = ["../m"]\n[server]\nuds = "/run/a/../b/s"\n')
    )
    assert HOME.parent / "m" in given.own and Path("/run/b") in given.writable
    assert not [path for path in (*given.own, *given.writable) if ".." in path.parts]


def test_both_files_have_them_and_nothing_secret(tmp_path: Path) -> None:
    shell = {
        "HF_TOKEN": KEY,
        "HTTP_PROXY": f"http://ann:{KEY}@proxy.lan",
        "HF_HOME": "/srv/hub",
        "OMLX_AUTH__API_KEYS": KEY,
    }
    given = made(loaded(tmp_path / "c.toml"), environment=found(**shell))
    for manager in (Launchd(given.home, 501), Systemd(given.home)):
        text = "\n".join(describe(manager.install(given, None)))
        assert "HF_HOME" in text and "/srv/hub" in text
        assert KEY not in text and "TOKEN" not in text and "HTTP_PROXY" not in text
