"""A program that opens sockets of the families in its arguments alone, as systemd's
RestrictAddressFamilies has it (seccomp), and then writes the names of this machine. Linux only."""

import ctypes
import os
import socket
import struct
import sys

_SOCKET_CALLS = {"x86_64": 41, "aarch64": 198}
_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 97  # EAFNOSUPPORT
_CALL_AT, _FAMILY_AT = 0, 16


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", code, then, otherwise, value)


def allow_only(families: list[int]) -> None:
    """Let this process open sockets of these address families alone."""
    steps = [
        _step(_LOAD, _CALL_AT),
        _step(_JUMP_IF_EQUAL, _SOCKET_CALLS[os.uname().machine], 0, len(families) + 2),
        _step(_LOAD, _FAMILY_AT),
        *(_step(_JUMP_IF_EQUAL, f, len(families) - at) for at, f in enumerate(families)),
        _step(_RETURN, _REFUSE),
        _step(_RETURN, _ALLOW),
    ]
    text = ctypes.create_string_buffer(b"".join(steps))
    program = _Program(len(steps), ctypes.cast(text, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    assert libc.prctl(_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) == 0, ctypes.get_errno()


if __name__ == "__main__":
    from omlx_server.api.http.host import machine_names

    allow_only([int(getattr(socket, name)) for name in sys.argv[1:]])
    try:
        socket.socket(socket.AF_PACKET)
    except OSError as error:
        assert error.errno == 97, error
    sys.stdout.write(" ".join(machine_names()))
