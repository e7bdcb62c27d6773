"""Values that no field takes, and bodies that are no JSON."""

from tests.api.harness import MARKER

NOT_EVEN_JSON: dict[str, bytes] = {
    "empty": b"",
    "spaces": b" \n\t ",
    "word": MARKER.encode(),
    "cut": b'{"model": "' + MARKER.encode(),
    "null": b"null",
    "true": b"true",
    "number": b"5",
    "text": b'"' + MARKER.encode() + b'"',
    "list": b"[]",
    "list-of-object": b'[{"model": "tiny"}]',
    "empty-object": b"{}",
    "deep-lists": b"[" * 20_000,
    "deep-closed-lists": b"[" * 20_000 + b"]" * 20_000,
    "deep-objects": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    "deep-in-a-field": b'{"model":"tiny","messages":' + b"[" * 900 + b"]" * 900 + b"}",
    "latin-1": '{"model": "é"}'.encode("latin-1"),
    "utf-16": '{"model": "tiny"}'.encode("utf-16"),
    "byte-order-mark": b"\xef\xbb\xbf{}",
    "bad-utf-8": b'{"model": "\xff\xfe' + MARKER.encode() + b'"}',
    "overlong-utf-8": b'{"model": "\xc0\x80"}',
    "zero-byte": b'{"model": "\x00"}',
    "two-objects": b"{}{}",
    "trailing-comma": b'{"model": "tiny",}',
    "comment": b'{"model": "tiny" /* hi */}',
    "single-quotes": b"{'model': 'tiny'}",
}

RAW_VALUES: dict[str, str] = {
    "temperature-nan": '"temperature": NaN',
    "temperature-infinity": '"temperature": Infinity',
    "temperature-minus-infinity": '"temperature": -Infinity',
    "temperature-1e400": '"temperature": 1e400',
    "top-p-nan": '"top_p": NaN',
    "bias-1e400": '"logit_bias": {"5": 1e400}',
    "n-1e999999": '"n": 1e999999',
    "max-tokens-1e400": '"max_tokens": 1e400',
    "max-tokens-huge": '"max_tokens": ' + "9" * 5000,
    "seed-huge": '"seed": ' + "9" * 5000,
    "high-surrogate": '"user": "\\ud800"',
    "low-surrogate": '"user": "\\udc00 ' + MARKER + '"',
    "surrogate-key": '"\\ud800": 1',
}
