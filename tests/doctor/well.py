"""A probe of MLX that costs no second, and finds a machine which is well."""

import json
import sys

_FACTS = {"device": "CPU", "is_cpu": True, "blas": "b", "ram": 16_000_000_000, "working_set": None}
WELL = (sys.executable, "-c", f"print({json.dumps(_FACTS)!r})")
