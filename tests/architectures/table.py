"""The tiny configs of all families in one table, but for those that tests/tiny_models.py has."""

from typing import Any

from tests.architectures.dense import DENSE
from tests.architectures.experts import EXPERTS

TABLE: dict[str, dict[str, Any]] = {**DENSE, **EXPERTS}
