"""Messages between ranks as bytes: a name and MessagePack. Reading runs no code."""

from functools import cache
from typing import Any, get_args

import msgspec

from omlx_server.core.cluster import commands, handshake

_MESSAGES = (*get_args(commands.Command), commands.PayloadRead, *get_args(handshake.Message))
_TYPES = {each.__name__.encode(): each for each in _MESSAGES}
_to_msgpack = msgspec.msgpack.Encoder().encode


class BadMessage(Exception):
    """These bytes are no message of another rank."""


def encode(message: object) -> bytes:
    return type(message).__name__.encode() + b"\0" + _to_msgpack(message)


def decode(data: bytes) -> Any:
    """Return the message in these bytes. Raises BadMessage."""
    name, _, fields = data.partition(b"\0")
    if name not in _TYPES:
        raise BadMessage(f"no message is called {name[:40]!r}")
    try:
        return _decoder_of(name).decode(fields)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadMessage(f"a message is damaged: {error}") from error


@cache
def _decoder_of(name: bytes) -> "msgspec.msgpack.Decoder[Any]":
    return msgspec.msgpack.Decoder(_TYPES[name])
