"""The parameters of answers that /set changes in a conversation."""

import difflib

from omlx_server.cli.shell.output import visible
from omlx_server.errors import UsageError
from omlx_server.settings.fields import fields_of
from omlx_server.settings.overrides import SamplingOverride
from omlx_server.settings.values import LayerValue, convert, parse_text, plain

PARAMETERS = fields_of(SamplingOverride)


def read_parameter(name: str, text: str) -> object:
    """Return the value for a request. Raises UsageError for a value that is not allowed."""
    check_name(name)
    field = PARAMETERS[name]
    value = parse_text(text, field)
    return plain(convert(name, field, value, LayerValue(text, "", is_text=True)))


def check_name(name: str) -> None:
    """Raise UsageError for an unknown parameter."""
    if name in PARAMETERS:
        return
    if name == "system":  # as Ollama has it
        raise UsageError("system: no such parameter", hint="/system TEXT sets the system message")
    near = difflib.get_close_matches(name, PARAMETERS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(PARAMETERS)}"
    raise UsageError(f"{visible(name)}: no such parameter", hint=hint)
