"""The surface of what has to do with models: on the disk (`pull`, `list`, `rm`, `alias`) and in a
running server (`ps`, `load`, `unload`, `pin`). See `app`."""

from typing import Annotated

import typer

from omlx_server.cli.complete import complete_models
from omlx_server.cli.surface import ConfigOption, KeyOption, SetOption, UrlOption, run

JsonOption = Annotated[bool, typer.Option("--json", help="The same as JSON.")]
NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", autocompletion=complete_models, help="As `omlx-server list` says it."
    ),
]


def add_model_commands(app: typer.Typer) -> None:
    for command in (pull, ps, load, unload, pin, alias, rm):
        app.command()(command)
    app.command("list")(list_)


def pull(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            autocompletion=complete_models,
            help="starter, all-MiniLM-L6-v2, or org/name on Hugging Face.",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="End with one line of JSON: what came, and where it is.")
    ] = False,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Download a model, or check one that is here and repair it.

    \b
    Examples:
      omlx-server pull starter
      omlx-server pull mlx-community/Qwen3-0.6B-4bit
      omlx-server pull mlx-community/Qwen3-0.6B-4bit --set models.use_hf_cache=false
      HF_TOKEN=hf_... omlx-server pull some-org/gated-model

    \b
    What is interrupted goes on when you run it again. Every large file is compared with the sha256
    that the hub tells, and the disk is looked at before anything large comes.
    """
    run("models_pull", name=name, as_json=as_json, config=config_file, sets=sets or [])


def list_(
    as_json: JsonOption = False, config_file: ConfigOption = None, sets: SetOption = None
) -> None:
    """List the models on this machine, and why one can't be served.

    \b
    Examples:
      omlx-server list
      omlx-server list --json --set models.use_hf_cache=false
    """
    run("models_list", as_json=as_json, config=config_file, sets=sets or [])


def rm(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Remove a model from the disk.

    \b
    Examples:
      omlx-server rm mlx-community/Qwen3-0.6B-4bit
      omlx-server rm starter --yes

    A model that a running server has loaded stays: `omlx-server unload` first.
    """
    run("models_rm", name=name, yes=yes, config=config_file, sets=sets or [])


def alias(
    name: Annotated[
        str, typer.Argument(metavar="NAME", show_default=False, help="The new name.")
    ] = "",
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            show_default=False,
            autocompletion=complete_models,
            help="The model that it stands for.",
        ),
    ] = "",
    remove: Annotated[str, typer.Option("--remove", metavar="NAME", help="Forget this one.")] = "",
    as_json: JsonOption = False,
    config_file: ConfigOption = None,
) -> None:
    """Give a model another name, or list those that there are.

    \b
    Examples:
      omlx-server alias small mlx-community/Qwen3-0.6B-4bit
      omlx-server alias gpt-4o starter
      omlx-server alias --remove small
      omlx-server alias

    They are kept in the config file under [models.aliases]; its comments stay.
    """
    names = {"name": name, "target": target, "remove": remove}
    run("models_alias", **names, as_json=as_json, config=config_file)


def ps(
    as_json: JsonOption = False,
    url: UrlOption = "",
    api_key: KeyOption = "",
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """List the models of a running server: loaded or not, in use, pinned, and their memory.

    \b
    Examples:
      omlx-server ps
      omlx-server ps --json
    """
    where = {"url": url, "api_key": api_key, "config": config_file, "sets": sets or []}
    run("models_loaded", "ps", as_json=as_json, **where)


def load(
    name: NameArgument,
    url: UrlOption = "",
    api_key: KeyOption = "",
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Load a model into a running server, and wait until it is there.

    \b
    Example:
      omlx-server load mlx-community/Qwen3-0.6B-4bit
    """
    where = {"url": url, "api_key": api_key, "config": config_file, "sets": sets or []}
    run("models_loaded", "load", name=name, **where)


def unload(
    name: NameArgument,
    url: UrlOption = "",
    api_key: KeyOption = "",
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Let a running server give the memory of a model back. Its files stay.

    \b
    Example:
      omlx-server unload mlx-community/Qwen3-0.6B-4bit
    """
    where = {"url": url, "api_key": api_key, "config": config_file, "sets": sets or []}
    run("models_loaded", "unload", name=name, **where)


def pin(
    name: NameArgument,
    off: Annotated[bool, typer.Option("--off", help="Let it be unloaded again.")] = False,
    url: UrlOption = "",
    api_key: KeyOption = "",
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Keep a model in a running server, however long nobody uses it.

    \b
    Examples:
      omlx-server pin starter
      omlx-server pin starter --off

    Until the server ends. For good: `omlx-server config set models.pinned NAME`.
    """
    where = {"url": url, "api_key": api_key, "config": config_file, "sets": sets or []}
    run("models_loaded", "pin", name=name, off=off, **where)
