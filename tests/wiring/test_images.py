"""What reads the images of a model that sees, and what is said where its files do not say how."""

import asyncio
import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from omlx_server.api.models.image_reader import GivenImage, ImageReader, TextOnly
from omlx_server.api.worker_threads import Turns, WorkerThreads
from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.engine.client.model_client import GeneratorClient
from omlx_server.errors import BadRequest, Unavailable
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.wiring.images import changed_image_reader, make_image_reader
from tests.api.images import forms
from tests.images.files import encoded, noise
from tests.vision_models import save_vision


@pytest.fixture(name="directory")
def _directory(tmp_path: Path) -> Path:
    return save_vision(tmp_path / "model")


def made(directory: Path, **settings: Any) -> ImageReader | TextOnly:
    client = GeneratorClient(AsyncEngine(lambda problem: None))
    tokenizer = Tokenizer.load(directory)
    return make_image_reader(Located(directory, ("m",)), client, Settings.of(settings), tokenizer)


def turns() -> Turns:
    return partial(WorkerThreads("images", 2).turn, (b"client",))


def given(count: int) -> list[GivenImage]:
    url = forms.url(encoded(noise(9, 9), "PNG"))
    return [GivenImage(url, "messages.0")] * count


def test_the_settings_bound_its_images(directory: Path) -> None:
    reader = made(directory, images={"max_per_request": 2})
    assert isinstance(reader, ImageReader)
    with pytest.raises(BadRequest, match="2 are the most"):
        asyncio.run(reader.read(given(3), turns()))
    changed = changed_image_reader(reader, Settings.of({"images": {"max_tokens": 16}}))
    assert isinstance(changed, ImageReader)
    assert (changed.max_tokens, changed.max_per_request) == (16, 100)
    assert changed.markup == reader.markup
    with pytest.raises(Unavailable):  # no model is loaded, so none sets memory aside
        asyncio.run(changed.read(given(3), turns()))


def test_a_model_for_text_stays_one() -> None:
    assert changed_image_reader(TextOnly("a"), Settings()) == TextOnly("a")


def another_preparation(directory: Path) -> str:
    own = json.dumps({"image_processor_type": "PixtralImageProcessor"})
    (directory / "preprocessor_config.json").write_text(own, "utf-8")
    return "'PixtralImageProcessor' is not known"


def another_tokenizer(directory: Path) -> str:
    text = (directory / "tokenizer.json").read_text("utf-8")
    (directory / "tokenizer.json").write_text(text.replace("<|vision_end|>", "<|end_of_vision|>"))
    return "there is no token <|vision_end|>"


@pytest.mark.parametrize("change", [another_preparation, another_tokenizer])
def test_a_model_whose_files_say_it_otherwise_takes_text_only(
    directory: Path, change: Callable[[Path], str], caplog: pytest.LogCaptureFixture
) -> None:
    why = change(directory)
    with caplog.at_level(logging.WARNING):
        reader = made(directory)
    assert isinstance(reader, TextOnly)
    assert why in reader.why and "m takes no images: " in caplog.text


def test_the_preparation_may_be_in_the_file_of_the_processor(directory: Path) -> None:
    own = directory / "preprocessor_config.json"
    whole = {"processor_class": "Qwen3VLProcessor", "image_processor": json.loads(own.read_text())}
    own.unlink()
    (directory / "processor_config.json").write_text(json.dumps(whole), "utf-8")
    reader = made(directory)
    assert isinstance(reader, ImageReader)
    assert reader.markup.placeholder == Tokenizer.load(directory).token_id("<|image_pad|>")
