"""The tiny model of the API tests."""

from tests.api.conftest import tiny_models

__all__ = ["tiny_models"]
