"""`omlx-server doctor --model NAME --stress MINUTES`: asks, runs the phases, prints the report."""

import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from omlx_server.cli.look.selftest import ReportOutput, raise_exit
from omlx_server.cli.look.stress_load import StressPlan
from omlx_server.cli.look.stress_phases import StressPhases
from omlx_server.cli.look.stress_server import StressServer
from omlx_server.cli.shell import stdin
from omlx_server.cli.shell.ending import on_sigterm
from omlx_server.cli.shell.options import check_model_overrides, load_settings
from omlx_server.cli.shell.output import say, show_json
from omlx_server.doctor.stress.report import PLACE, StressReport
from omlx_server.settings import Settings
from omlx_server.settings.types import own_place
from omlx_server.settings.values import plain

PLAN = StressPlan()
_QUESTION = "This may reboot a Mac with a faulty driver. Save your work. Go on?"
_SECTIONS = ("memory", "cache", "kv_cache", "scheduler", "speculation", "context")


def run(
    model: str,
    minutes: float,
    output: ReportOutput,
    config: Path | None,
    sets: Sequence[str],
    *,
    yes: bool,
) -> int:
    """Run the phases; return 1 if one fails. Raises UsageError."""
    settings, file = load_settings(config, sets).settings, output.file()
    check_model_overrides(settings)
    from omlx_server.doctor.selftest.subject import find_subject

    name = find_subject(model, settings).names[0]
    if not yes and not stdin.confirm(_QUESTION, "--yes runs the test without asking"):
        print("Nothing was run.")
        return 1
    files = [own_place(PLACE), *([file] if file else [])]
    say(f"the report is in {files[-1]}, also after a reboot")
    with tempfile.TemporaryDirectory(prefix="omlx-stress-") as temporary, on_sigterm(raise_exit):
        sets = [*sets, *_own_sets(Path(temporary))]
        in_force = load_settings(config, sets).settings
        report = StressReport(files, _head(name, in_force, minutes))
        server = StressServer(model, config, sets, Path(temporary) / "log")
        try:
            StressPhases(server, PLAN, report).run(minutes)
        except (KeyboardInterrupt, SystemExit):
            report.write(None, interrupted=True)
            raise
        finally:
            server.end()
        document = report.write(None)
    if output.to_stdout:
        show_json(document)
    return 0 if document["ok"] else 1


def _own_sets(directory: Path) -> list[str]:
    """Return the settings that keep the user's files, ports and other machines out of the test."""
    own = {
        "server.host": "127.0.0.1",
        "server.port": 0,
        "server.uds": "",
        "cluster.hosts": "",
        "logging.file": "",
        "responses.store": "memory",
        "cache.remote": "",
        "cache.cold_dir": directory / "kv",
        "cache.cold_cache_max_bytes": PLAN.cold_bytes,
        "cache.cold_min_free_disk": 0,
        "cache.hot_cache_max_bytes": PLAN.hot_bytes,
    }
    return [f"{key}={value}" for key, value in own.items()]


def _head(name: str, settings: Settings, minutes: float) -> dict[str, Any]:
    """Return the part of the report that is known before the test."""
    from omlx_server.doctor.shareable import shareable

    shown = {
        section: {key: plain(value) for key, value in values}
        for section, values in settings
        if section in _SECTIONS
    }
    mac = ""
    with suppress(OSError):  # elsewhere there is no such program
        command = ["/usr/sbin/sysctl", "-n", "hw.model"]
        mac = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return shareable(
        "omlx-server stress test",
        model={"name": name},
        settings=shown,
        checks=(),
        quick=False,
        mac=mac,
        minutes=minutes,
    )
