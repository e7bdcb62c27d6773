"""The options and help texts of the commands about models."""

from typing import Annotated

import typer

from omlx_server.cli.shell.command import (
    Commands,
    ConfigOption,
    JsonOption,
    KeyOption,
    NameArgument,
    SetOption,
    UrlOption,
    flag,
    model_argument,
    option,
)
from omlx_server.cli.shell.complete import complete_pullable

PullName = Annotated[
    str,
    model_argument(
        "A short name (starter, qwen3-4b: `omlx-server search` lists them), or org/name on Hugging "
        "Face, or its address.",
        metavar="NAME",
        complete=complete_pullable,
    ),
]
PullJsonOption = Annotated[
    bool, flag("End with one line of JSON: what came, and where it is.", "--json")
]
AliasName = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The new name.")]
AliasTarget = Annotated[str, model_argument("The model that it stands for.", metavar="TARGET")]


def add_model_commands(app: Commands) -> None:
    for command in (search, pull, show, ps, load, unload, pin, alias, rm):
        app.command()(command)
    app.command("list")(list_)


def pull(
    name: PullName,
    as_json: PullJsonOption = False,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
    """Download a model, or check one that is here and repair it.

    \b
    Examples:
      omlx-server pull starter
      omlx-server pull qwen3-4b
      omlx-server pull mlx-community/Qwen3-0.6B-4bit
      omlx-server pull https://huggingface.co/mlx-community/Qwen3-0.6B-4bit
      omlx-server pull mlx-community/Qwen3-0.6B-4bit --set models.use_hf_cache=false
      HF_TOKEN=hf_... omlx-server pull some-org/gated-model

    \b
    What is interrupted goes on when you run it again. Every large file is compared with the sha256
    that the hub tells, and the disk is looked at before anything large comes.
    """
    from omlx_server.cli.models.pull import run

    return run(name=name, as_json=as_json, config=config_file, sets=sets or [])


def search(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", show_default=False, help="A part of a model's name.")
    ] = "",
    as_json: JsonOption = False,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
    """Search the hub for models, or list short names of usual ones.

    \b
    Examples:
      omlx-server search
      omlx-server search qwen3
      omlx-server search qwen3 --json

    Without a text nothing is asked. Sizes of short names are approximate. A size is that on the
    disk and in memory; below the name stands how much is downloaded, where that is not the same.
    """
    from omlx_server.cli.models.search import run

    return run(text=text, as_json=as_json, config=config_file, sets=sets or [])


def list_(
    as_json: JsonOption = False, config_file: ConfigOption = None, sets: SetOption = None
) -> int:
    """List the models on this machine, and why one can't be served.

    \b
    Examples:
      omlx-server list
      omlx-server list --json --set models.use_hf_cache=false
    """
    from omlx_server.cli.models.list import run

    return run(as_json=as_json, config=config_file, sets=sets or [])


def show(
    name: NameArgument,
    as_json: JsonOption = False,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
    """Say what is known of one model: its files, context and settings.

    \b
    Examples:
      omlx-server show starter
      omlx-server show mlx-community/Qwen3-0.6B-4bit --json

    Opens no weights. It also says whether a server has loaded the model, if one answers.
    """
    from omlx_server.cli.models.show import run

    return run(name=name, as_json=as_json, config=config_file, sets=sets or [])


def rm(
    name: NameArgument,
    yes: Annotated[bool, flag("Remove without asking.", "--yes", "-y")] = False,
    url: UrlOption = "",
    api_key: KeyOption = "",
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
    """Remove a model from the disk.

    \b
    Examples:
      omlx-server rm mlx-community/Qwen3-0.6B-4bit
      omlx-server rm starter --yes
      omlx-server rm starter --url http://127.0.0.1:9000

    A model that the server has loaded stays: `omlx-server unload` first. The files are those of
    this machine, also with --url. If no server answers at that URL, nothing is removed.
    """
    from omlx_server.cli.models.rm import run

    return run(name=name, yes=yes, url=url, api_key=api_key, config=config_file, sets=sets or [])


def alias(
    name: AliasName = "",
    target: AliasTarget = "",
    remove: Annotated[str, option("NAME", "Forget this one.", "--remove")] = "",
    as_json: JsonOption = False,
    config_file: ConfigOption = None,
) -> int:
    """Give a model another name, or list those that there are.

    \b
    Examples:
      omlx-server alias small mlx-community/Qwen3-0.6B-4bit
      omlx-server alias gpt-4o starter
      omlx-server alias --remove small
      omlx-server alias

    They are kept in the config file under [models.aliases]; its comments stay.
    """
    from omlx_server.cli.models.alias import run

    return run(name=name, target=target, remove=remove, as_json=as_json, config=config_file)


def ps(
    as_json: JsonOption = False,
    url: UrlOption = "",
    api_key: KeyOption = "",
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
    """List the models of a running server, and their memory.

    \b
    Examples:
      omlx-server ps
      omlx-server ps --json

    It says which are loaded, in use and pinned.
    """
    from omlx_server.cli.models.loaded import ps
    from omlx_server.cli.models.server import admin_server_of

    server = admin_server_of(url, api_key, config_file, sets or [])
    return ps(server, as_json=as_json)


def load(
    name: NameArgument,
    as_json: JsonOption = False,
    url: UrlOption = "",
    api_key: KeyOption = "",
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
    """Load a model into a running server, and wait until it is there.

    \b
    Example:
      omlx-server load mlx-community/Qwen3-0.6B-4bit
    """
    from omlx_server.cli.models.loaded import load
    from omlx_server.cli.models.server import admin_server_of

    server = admin_server_of(url, api_key, config_file, sets or [])
    return load(server, name=name, as_json=as_json)


def unload(
    name: NameArgument,
    as_json: JsonOption = False,
    url: UrlOption = "",
    api_key: KeyOption = "",
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
    """Let a running server give the memory of a model back. Its files stay.

    \b
    Example:
      omlx-server unload mlx-community/Qwen3-0.6B-4bit
    """
    from omlx_server.cli.models.loaded import unload
    from omlx_server.cli.models.server import admin_server_of

    server = admin_server_of(url, api_key, config_file, sets or [])
    return unload(server, name=name, as_json=as_json)


def pin(
    name: NameArgument,
    off: Annotated[bool, flag("Let it be unloaded again.", "--off")] = False,
    as_json: JsonOption = False,
    url: UrlOption = "",
    api_key: KeyOption = "",
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
    """Keep a model in a running server, however long nobody uses it.

    \b
    Examples:
      omlx-server pin starter
      omlx-server pin starter --off

    Until the server ends. For good: `omlx-server config set models.pinned NAME`.
    """
    from omlx_server.cli.models.loaded import pin
    from omlx_server.cli.models.server import admin_server_of

    server = admin_server_of(url, api_key, config_file, sets or [])
    return pin(server, name=name, off=off, as_json=as_json)
