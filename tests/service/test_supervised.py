"""Only the installed service is started again by its manager."""

from pathlib import Path

import pytest

from omlx_server.service.supervised import is_started_again

_NOTIFY = {"NOTIFY_SOCKET": "/run/user/1000/systemd/notify"}
_UNIT = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/omlx-server.service\n"


@pytest.mark.parametrize(
    ("environ", "group", "expected"),
    [
        ({"XPC_SERVICE_NAME": "org.omlx.server"}, "", True),
        ({"XPC_SERVICE_NAME": "0"}, "", False),
        ({"XPC_SERVICE_NAME": "application.com.apple.Terminal.1"}, "", False),
        (_NOTIFY, _UNIT, True),
        (_NOTIFY, "0::/system.slice/omlx-server.service\n", True),
        (_NOTIFY, "0::/system.slice/another.service\n", False),
        ({}, _UNIT, False),
        ({}, "", False),
    ],
)
def test_what_the_manager_says(
    environ: dict[str, str], group: str, expected: bool, tmp_path: Path
) -> None:
    cgroup = tmp_path / "cgroup"
    if group:
        cgroup.write_text(group)
    assert is_started_again(environ, cgroup) is expected
