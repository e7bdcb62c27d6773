"""What `serve` checks before it imports MLX, with models and adapters on the disk."""

import json
from pathlib import Path

import pytest

from omlx_server.cli.serve.serve import check_start
from omlx_server.core.adapters import CONFIG, WEIGHTS
from omlx_server.errors import UsageError
from omlx_server.settings import Settings, load
from tests.models.directories import make, no_tensors

LORA = {"lora_parameters": {"rank": 4, "scale": 20.0}}


@pytest.fixture
def writer(home: Path) -> Path:
    """An adapter of the model acme/big, whose weights name no matrices."""
    adapter = make(home / "models" / "acme" / "big") / "adapters" / "writer"
    adapter.mkdir(parents=True)
    (adapter / CONFIG).write_text(json.dumps(LORA))
    (adapter / WEIGHTS).write_bytes(no_tensors(10))
    return adapter


def settings(**flags: str) -> Settings:
    own = {"server.port": "0", "models.dirs": "models", "models.use_hf_cache": "false"}
    aliases = '{"small": "acme/big"}'
    changes = {key.replace("__", "."): value for key, value in flags.items()}
    return load(None, {**own, "models.aliases": aliases, **changes}).settings


@pytest.mark.parametrize("model", ["acme/big", "big", "small", "models/acme/big"])
def test_an_adapter_that_is_not_there_is_told_for_every_name_of_its_model(
    model: str, writer: Path
) -> None:
    check_start(settings(), model)
    with pytest.raises(UsageError, match=r"has no adapter 'wrter'\. It has: writer"):
        check_start(settings(adapters__default="wrter"), model)


def test_an_adapter_whose_files_can_not_be_used_is_told(writer: Path) -> None:
    for default in ("writer", str(writer)):
        with pytest.raises(UsageError, match="'writer' can't be used: it has no matrices"):
            check_start(settings(adapters__default=default), "big")
    (writer / CONFIG).unlink()
    with pytest.raises(UsageError, match=f"it has no {CONFIG}"):
        check_start(settings(adapters__default=str(writer)), "big")


def test_of_a_model_that_is_not_here_only_the_path_of_an_adapter_is_checked(writer: Path) -> None:
    check_start(settings(adapters__default="writer"), "starter")
    with pytest.raises(UsageError, match=r"there is no directory .*/nope of an adapter"):
        check_start(settings(adapters__default="./nope"), "starter")


def test_aliases_lead_to_models_that_read(writer: Path) -> None:
    check_start(settings(models__embedding="small"), "big")
    with pytest.raises(UsageError, match="There is no model 'smal'"):
        check_start(settings(models__embedding="smal"), "big")
