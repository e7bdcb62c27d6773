"""`omlx-server alias`: sets, removes and lists other names of models in the config file."""

from pathlib import Path

from omlx_server.cli.models.named import find_with_adapter
from omlx_server.cli.models.server import answer_of, own_admin_server
from omlx_server.cli.server_client.http import NoAnswer
from omlx_server.cli.shell.options import load_settings
from omlx_server.cli.shell.output import say, show_result
from omlx_server.errors import ModelUnavailable, OmlxError, UsageError
from omlx_server.models import catalogue
from omlx_server.models.hub.names import hub_name
from omlx_server.models.installed import installed_models
from omlx_server.settings import Settings, edit

_KEY = "models.aliases"
_MOST_CHARACTERS = 200


def run(*, name: str, target: str, remove: str, as_json: bool, config: Path | None) -> int:
    if remove and (name or target):
        raise UsageError("--remove stands alone", hint="omlx-server alias --remove NAME")
    if name and not target:
        raise UsageError(f"what should {name} stand for?", hint="omlx-server alias NAME TARGET")
    if not (name or remove):
        return _print_aliases(config, as_json=as_json)
    # A named config file that does not exist is made.
    settings = load_settings(config if config and config.exists() else None).settings
    aliases = settings.models.aliases
    if remove and remove not in aliases:
        hint = f"there is {', '.join(sorted(aliases))}" if aliases else "there is none"
        raise UsageError(f"there is no alias {remove}", hint=hint)
    if name:
        _check_alias(name, target, settings)
    file = edit.file_to_change(config)
    edit.set_alias(file, remove or name, target or None)
    if as_json:
        _print_aliases(config, as_json=True)
    else:
        change = f"{remove} is forgotten" if remove else f"{name} -> {target}"
        print(f"{change}  # {file}")
    origin = load_settings(config).origins[_KEY]
    if origin.startswith("env "):
        say(f"warning: {origin} wins over it")
    _tell_server(settings, remove or name, target or None)
    return 0


def _print_aliases(config: Path | None, *, as_json: bool) -> int:
    aliases = load_settings(config).settings.models.aliases
    lines = [f"{name} -> {target}" for name, target in sorted(aliases.items())]
    none = ["There are none. `omlx-server alias NAME TARGET` makes one."]
    show_result(aliases, lines or none, as_json=as_json)
    return 0


def _check_alias(name: str, target: str, settings: Settings) -> None:
    models = settings.models
    is_path = name.startswith((".", "/", "~")) or not {"", ".", ".."}.isdisjoint(name.split("/"))
    has_blanks = name != name.strip()
    if is_path or has_blanks or not name.isprintable() or len(name) > _MOST_CHARACTERS:
        raise UsageError(
            f"{name!r} can't be a name", hint="letters, digits and signs, as in gpt-4o"
        )
    if target in models.aliases:
        raise UsageError(
            f"{target} is an alias itself", hint=f"it stands for {models.aliases[target]}"
        )
    if name in catalogue.NAMES.union(*(model.names for model in installed_models(models))):
        raise UsageError(f"a model has the name {name} already", hint="choose another one")
    if target in catalogue.NAMES:
        return
    try:
        find_with_adapter(target, settings, takes_paths=False)
    except ModelUnavailable as error:
        hint = f"`omlx-server pull {target}` first" if hub_name(target) else error.hint
        raise UsageError(error.message, hint=hint) from None


def _tell_server(settings: Settings, name: str, target: str | None) -> None:
    server = own_admin_server(settings)
    try:
        answer_of(server.post("/admin/settings/reload", {}))
        listed = answer_of(server.get("/admin/settings")).get("settings", ())
    except NoAnswer:
        return
    except OmlxError as error:
        say(f"note: the server at {server.url} was not told: {error.message}")
        return
    in_force = {setting["key"]: setting["value"] for setting in listed}
    if in_force.get(_KEY, {}).get(name) == target:
        say(f"the server at {server.url} {'knows it' if target else 'has forgotten it'}")
    else:
        say(f"note: the server at {server.url} has another config, and does not follow")
