"""EXIF's orientation of an image."""

import struct
from contextlib import suppress

_ORIENTATION, _SHORT = 0x0112, 3  # a TIFF's tag and the type of its value
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}


def orientation_of(exif: bytes) -> int:
    """Return 1 to 8; 1 if there is none or the data is damaged. `exif` is a TIFF, perhaps after
    `Exif`."""
    tiff = exif.removeprefix(b"Exif\0\0")
    order = _BYTE_ORDERS.get(tiff[:4])
    if order is None:
        return 1
    with suppress(struct.error):
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for index in range(count):
            tag, type_, values, value = struct.unpack_from(
                f"{order}HHIH", tiff, start + 2 + 12 * index
            )
            if (tag, type_, values) == (_ORIENTATION, _SHORT, 1):
                return value if 1 <= value <= 8 else 1
    return 1
