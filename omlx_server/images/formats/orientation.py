"""EXIF's orientation of an image."""

import struct

_ORIENTATION, _SHORT = 0x0112, 3
_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}


def orientation_of(exif: bytes) -> int:
    """Return 1 to 8; 1 if there is none or the data is damaged. `exif` is a TIFF, perhaps after
    `Exif`."""
    tiff = exif.removeprefix(b"Exif\0\0")
    order = _ORDERS.get(tiff[:4])
    try:
        if order is None:
            return 1
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for index in range(count):
            entry = struct.unpack_from(f"{order}HHIH", tiff, start + 2 + 12 * index)
            if entry[:3] == (_ORIENTATION, _SHORT, 1):
                return entry[3] if 1 <= entry[3] <= 8 else 1
    except struct.error:
        pass
    return 1
