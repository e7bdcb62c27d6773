"""The options and help texts of `status`, `bench`, `doctor` and `version`."""

from pathlib import Path
from typing import Annotated

from omlx_server import __version__
from omlx_server.cli.shell.command import (
    ConfigOption,
    JsonOption,
    KeyOption,
    SetOption,
    UrlOption,
    flag,
    model_option,
    option,
)
from omlx_server.errors import UsageError

BenchModel = Annotated[str, model_option("The model to measure [default: the first one].")]
PlotOption = Annotated[Path | None, option("FILE", "Draw it as a PNG; needs matplotlib.")]
AgainstOption = Annotated[Path | None, option("FILE", "Compare with an earlier --json.")]

TestedModel = Annotated[
    str, model_option("Load this model and test it. With --hosts: what they are to compute.")
]
CheckedHosts = Annotated[str | None, option("FILE", "Check these machines, too, as a cluster.")]
QuickOption = Annotated[bool, flag("A minute at most instead of some.", "--quick")]
StressOption = Annotated[
    float | None,
    option(
        "MINUTES",
        "Load a server of the model to its limits. May reboot a Mac with a faulty driver.",
        "--stress",
        min=0.01,
    ),
]
YesOption = Annotated[bool, flag("Start --stress without asking.", "--yes", "-y")]
ShareOption = Annotated[
    str,
    option(
        "FILE",
        "Write the self-test as JSON; it names the model, not the user or the machine; - is "
        "stdout.",
    ),
]
_ONLY_A_MODEL = "--quick, --stress and --share are for the self-test"


def status(
    as_json: JsonOption = False,
    url: UrlOption = "",
    api_key: KeyOption = "",
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
    """Say what the server is doing: models, load, memory, cache.

    Exit code 1 when nothing answers, or when it is not ready.

    \b
    Examples:
      omlx-server status
      omlx-server status --json --url http://gpu-box:8000
    """
    from omlx_server.cli.look.status import run

    return run(as_json=as_json, url=url, api_key=api_key, config=config_file, sets=sets or [])


def bench(
    as_json: JsonOption = False,
    plot: PlotOption = None,
    against: AgainstOption = None,
    url: UrlOption = "",
    model: BenchModel = "",
    api_key: KeyOption = "",
    config_file: ConfigOption = None,
) -> int:
    """Measure a running server: first tokens, decoding, turns of a talk. Takes about a minute.

    \b
    Examples:
      omlx-server bench
      omlx-server bench --json > before.json
      omlx-server bench --against before.json --plot bench.png
      omlx-server bench --url http://gpu-box:8000 --model Qwen3-4B-4bit

    \b
    Every figure is a median, with the smallest and the largest beside it; what warms up doesn't
    count. No prompt comes twice between runs, so cold is cold. Measure while nothing else runs.
    Works with any server that streams chat completions.
    """
    from omlx_server.cli.bench.command import run
    from omlx_server.cli.server_client.http import server_of

    server = server_of(url, api_key, config_file)
    return run(server=server, as_json=as_json, plot=plot, against=against, model=model)


def doctor(
    model: TestedModel = "",
    hosts: CheckedHosts = None,
    quick: QuickOption = False,
    minutes: StressOption = None,
    yes: YesOption = False,
    share: ShareOption = "",
    as_json: JsonOption = False,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
    """Check this machine and the settings, and say what to repair.

    Exit code 1 when something fails. Changes nothing and downloads nothing.

    \b
    With --model it loads that model by your settings and tests it here, for some minutes:
      hits, batch     cached and batched answers are those of a fresh prefill, alone
      memory, chunks  what steps were planned to take and took; how long a chunk of a prompt takes
      streams         tokens per second beside MLX's bare loop on the same weights
    Block files go to a temporary directory. Stop a running server before: both need memory.

    \b
    Examples:
      omlx-server doctor --json --config ./omlx.toml
      omlx-server doctor --hosts hosts.json --model ./my-model
      omlx-server doctor --model Qwen3-4B-4bit --quick --share report.json
      omlx-server doctor --model Qwen3-4B-4bit --stress 30
    """
    from omlx_server.cli.look import doctor, selftest, stress

    if hosts is None and model:
        output = selftest.ReportOutput(as_json, share)
        if minutes is not None:
            return stress.run(model, minutes, output, config_file, sets or [], yes=yes)
        return selftest.run(model, output, config_file, sets or [], quick=quick)
    if quick or share or minutes:
        raise UsageError(_ONLY_A_MODEL, hint="name only a --model")
    flags = {"cluster.hosts": hosts, "models.default": model or None}
    return doctor.run(as_json=as_json, config=config_file, sets=sets or [], flags=flags)


def version() -> int:
    """Print the versions of omlx-server, Python, mlx and mlx-lm.

    \b
    Example:
      omlx-server version
    """
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    print(f"omlx-server {__version__}")
    print(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in ("mlx", "mlx-lm"):
        try:
            print(f"{package} {version_of(package)}")
        except PackageNotFoundError:
            print(f"{package} not installed")
    return 0
