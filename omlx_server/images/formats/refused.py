"""Names of file kinds that are not decoded, for the message that refuses them."""

_STARTS = (
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
    (b"%PDF", "PDF"),
    (b"%!PS", "PostScript"),
    (b"\0\0\1\0", "ICO"),
    (b"\0\0\2\0", "cursor"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"8BPS", "Photoshop file"),
    (b"qoif", "QOI"),
    (b"icns", "ICNS"),
    (b"DDS ", "DDS"),
    (b"\x76\x2f\x31\x01", "OpenEXR"),
    (b"PK\x03\x04", "ZIP archive"),
    (b"\x1f\x8b", "gzip archive"),
    (b"\x1a\x45\xdf\xa3", "Matroska or WebM video"),
    (b"#!", "script"),
)
_BRANDS = {
    b"heic": "HEIC",
    b"heix": "HEIC",
    b"hevc": "HEIC",
    b"heim": "HEIC",
    b"mif1": "HEIF",
    b"msf1": "HEIF",
    b"avif": "AVIF",
    b"avis": "AVIF",
}
# Tag that a text begins with or has near its beginning.
_MARKUP = (
    (b"<svg", "SVG"),
    (b"<!doctype html", "HTML page"),
    (b"<html", "HTML page"),
    (b"<?xml", "XML document"),
)


def name_of(data: bytes) -> str | None:
    for start, name in _STARTS:
        if data.startswith(start):
            return name
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12], "MP4 video")
    if data[:4] == b"RIFF":
        return {b"AVI ": "AVI video", b"WAVE": "WAVE sound"}.get(data[8:12])
    if data[:1] == b"P" and data[1:2] in b"123456" and data[2:3].isspace():
        return "Netpbm image"
    beginning = data[:1024].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if beginning.startswith(b"<"):
        return next((name for tag, name in _MARKUP if tag in beginning), "text with markup")
    return None
