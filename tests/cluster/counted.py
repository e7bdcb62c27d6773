"""Bytes that have gone over the TCP connections of this process, as Linux counts them."""

import os
import socket
import struct
from dataclasses import dataclass

import psutil

# Where these stand in struct tcp_info of linux/tcp.h, which has 216 bytes up to the last one.
_RECEIVED, _SENT, _SENT_AGAIN, _LENGTH = 128, 200, 208, 216


@dataclass(frozen=True)
class Counted:
    """Bytes of data, each counted once."""

    sent: int
    received: int


def connections() -> dict[tuple[int, int], Counted]:
    """By the ports of its own end and of the other one. None where the system is not Linux."""
    if not psutil.LINUX:
        return {}
    return {
        (each.laddr.port, each.raddr.port): _counted(each.fd)
        for each in psutil.Process().net_connections("tcp4")
        if each.raddr and each.fd >= 0
    }


def _counted(descriptor: int) -> Counted:
    with socket.socket(fileno=os.dup(descriptor)) as own:
        info = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LENGTH)
    received, sent, again = (
        struct.unpack_from("Q", info, at)[0] for at in (_RECEIVED, _SENT, _SENT_AGAIN)
    )
    return Counted(sent - again, received)
