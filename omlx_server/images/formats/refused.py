"""Names of file kinds that are not decoded, for the message that refuses them."""

_SIGNATURES = {
    "BMP": (b"BM",),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    "PDF": (b"%PDF",),
    "PostScript": (b"%!PS",),
    "ICO": (b"\0\0\1\0",),
    "cursor": (b"\0\0\2\0",),
    "JPEG XL": (b"\xff\x0a", b"\0\0\0\x0cJXL "),
    "JPEG 2000": (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"),
    "Photoshop file": (b"8BPS",),
    "QOI": (b"qoif",),
    "ICNS": (b"icns",),
    "DDS": (b"DDS ",),
    "OpenEXR": (b"\x76\x2f\x31\x01",),
    "ZIP archive": (b"PK\x03\x04",),
    "gzip archive": (b"\x1f\x8b",),
    "Matroska or WebM video": (b"\x1a\x45\xdf\xa3",),
    "script": (b"#!",),
}
_MP4_BRANDS = {
    **dict.fromkeys((b"heic", b"heix", b"hevc", b"heim"), "HEIC"),
    **dict.fromkeys((b"mif1", b"msf1"), "HEIF"),
    **dict.fromkeys((b"avif", b"avis"), "AVIF"),
}
# Tag that a text begins with or has near its beginning.
_MARKUP = (
    (b"<svg", "SVG"),
    (b"<!doctype html", "HTML page"),
    (b"<html", "HTML page"),
    (b"<?xml", "XML document"),
)


def name_of_refused(data: bytes) -> str | None:
    """Return the name of a file's format; None for an unknown one."""
    for name, signatures in _SIGNATURES.items():
        if data.startswith(signatures):
            return name
    if data[4:8] == b"ftyp":
        return _MP4_BRANDS.get(data[8:12], "MP4 video")
    if data[:4] == b"RIFF":
        return {b"AVI ": "AVI video", b"WAVE": "WAVE sound"}.get(data[8:12])
    if data[:1] == b"P" and data[1:2] in b"123456" and data[2:3].isspace():
        return "Netpbm image"
    beginning = data[:1024].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if beginning.startswith(b"<"):
        return next((name for tag, name in _MARKUP if tag in beginning), "text with markup")
    return None
