"""A tiny config of every architecture of mlx-lm, as its `config.json` would have it.

The name is the model type; what follows a plus is a second config of that architecture.
"""

from typing import Any

from tests import tiny_models
from tests.architectures.table import TABLE

CONFIGS: dict[str, dict[str, Any]] = {
    name: {"model_type": name.partition("+")[0], **config}
    for name, config in {**tiny_models.CONFIGS, **TABLE}.items()
}
