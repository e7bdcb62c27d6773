"""Pins as a short JSON file beside the blocks."""

import json
import math
from collections.abc import Sequence
from typing import Any

from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.pins import Pin


def pins_as_bytes(pins: Sequence[Pin]) -> bytes:
    return json.dumps([_shape(pin) for pin in pins], indent=1).encode()


def pins_of_bytes(data: bytes) -> tuple[Pin, ...]:
    """Parse pins, without entries that make no sense."""
    try:
        shapes = json.loads(data)
    except (ValueError, RecursionError):
        return ()
    pins = [_pin(shape) for shape in shapes] if isinstance(shapes, list) else []
    return tuple(pin for pin in pins if pin is not None)


def _shape(pin: Pin) -> dict[str, Any]:
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


def _pin(shape: Any) -> Pin | None:
    try:
        model, size = shape.get("model", ""), int(shape.get("block_tokens", 64))
        tenant = shape.get("tenant")  # files of older versions have none
        (shape["id"] + shape["namespace"] + model).encode()  # raises for a lone surrogate
        if not math.isfinite(shape["created"]) or size < 1:
            return None
        return Pin(
            id=str(shape["id"]),
            namespace=str(shape["namespace"]),
            root=BlockKey(bytes.fromhex(shape["root"])),
            tenant=BlockKey(bytes.fromhex(tenant)) if tenant is not None else None,
            tokens=int(shape["tokens"]),
            created=float(shape["created"]),
            keys=tuple(BlockKey(bytes.fromhex(key)) for key in shape["keys"]),
            block_tokens=size,
            model=model,
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None
