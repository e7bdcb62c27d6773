"""The largest image that is read."""

MOST_BYTES = 20 * 1024 * 1024  # Anthropic takes 5 MB and OpenAI 20 MB an image.
# A phone's 48 megapixels fit; decoding them holds up to 0.6 GB as a JPEG and 1.2 GB as a WebP.
MOST_PIXELS = 50_000_000
MOST_EDGE = 65_535
