"""Pins as a short JSON file beside the blocks."""

import json
import math
from collections.abc import Sequence
from typing import Any

from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.pins import Pin


def pins_as_bytes(pins: Sequence[Pin]) -> bytes:
    return json.dumps([_pin_as_json(pin) for pin in pins], indent=1).encode()


def pins_of_bytes(data: bytes) -> tuple[Pin, ...]:
    """Parse pins, without entries that make no sense."""
    try:
        entries = json.loads(data)
    except (ValueError, RecursionError):
        return ()
    pins = [_pin_of_json(entry) for entry in entries] if isinstance(entries, list) else []
    return tuple(pin for pin in pins if pin is not None)


def _pin_as_json(pin: Pin) -> dict[str, Any]:
    return {
        "id": pin.id,
        "namespace": pin.namespace,
        "root": pin.root.hex(),
        **({} if pin.tenant is None else {"tenant": pin.tenant.hex()}),
        "tokens": pin.tokens,
        "block_tokens": pin.block_tokens,
        "model": pin.model,
        "created": pin.created,
        "keys": [key.hex() for key in pin.keys],
    }


def _pin_of_json(entry: Any) -> Pin | None:
    try:
        model, size = entry.get("model", ""), int(entry.get("block_tokens", 64))
        tenant = entry.get("tenant")  # files of older versions have none
        (entry["id"] + entry["namespace"] + model).encode()  # raises for a lone surrogate
        if not math.isfinite(entry["created"]) or size < 1:
            return None
        return Pin(
            id=str(entry["id"]),
            namespace=str(entry["namespace"]),
            root=BlockKey(bytes.fromhex(entry["root"])),
            tenant=BlockKey(bytes.fromhex(tenant)) if tenant is not None else None,
            tokens=int(entry["tokens"]),
            created=float(entry["created"]),
            keys=tuple(BlockKey(bytes.fromhex(key)) for key in entry["keys"]),
            block_tokens=size,
            model=model,
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None
