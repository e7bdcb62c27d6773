"""The images of a chat, from finding to computing them. Runs on the asyncio thread.

A mark is the text that stands for an image until the prompt is tokenized. Then the image is one or
more runs of image tokens; a span is a run at its place in the prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fastapi import Request

from omlx_server.api.access.tenant import client_of
from omlx_server.api.chat.request import ChatRequest, ImageUrl
from omlx_server.api.context import context_of
from omlx_server.api.models.image_reader import GivenImage, ReadImage, TextOnly
from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.worker_threads import RunInThread, Turns
from omlx_server.core.images import ImageSpan
from omlx_server.core.request import Request as EngineRequest
from omlx_server.engine.client.model_client import GeneratorClient
from omlx_server.errors import BadRequest
from omlx_server.text.image_marks import ImageMarks

Place = tuple[int, int]
"""The numbers of a message and of a part in its content."""

_ROLES_WITH_IMAGES = ("user", "tool")


@dataclass(frozen=True, slots=True, eq=False)
class ChatImages:
    """The images of one chat: the text that marks each place, the image of each run of image
    tokens by its digest, and their share `nbytes` of the body."""

    marks: ImageMarks
    mark_texts: Mapping[Place, str]
    image_of_run: Mapping[bytes, ReadImage]
    nbytes: int


def image_turns(request: Request) -> Turns:
    """Return a maker of turns to work on a request's images."""
    return partial(context_of(request).image_threads.turn, (client_of(request),))


async def read_images(chat: ChatRequest, model: ServedModel, turns: Turns) -> ChatImages | None:
    """Read the images of a chat, if any. Raises as `ImageReader.read` and `TextOnly.refusal`."""
    given = images_by_place(chat)
    if not given:
        return None
    reader = model.images
    if isinstance(reader, TextOnly):
        raise reader.refusal(model.names[0], next(iter(given.values())).param)
    images = await reader.read(list(given.values()), turns)
    marks = ImageMarks(reader.markup.placeholder)
    mark_texts: dict[Place, str] = {}
    image_of_run: dict[bytes, ReadImage] = {}
    for place, image in zip(given, images, strict=True):
        shown = reader.shown(image)
        mark_texts[place] = marks.add(shown)
        image_of_run |= {run.digest: image for run in shown.runs}
    nbytes = sum(len(image.url) for image in given.values())
    return ChatImages(marks, mark_texts, image_of_run, nbytes)


def images_by_place(chat: ChatRequest) -> dict[Place, GivenImage]:
    """Return the images of a chat by place. Raises BadRequest for one in another role's message."""
    images: dict[Place, GivenImage] = {}
    for index, message in enumerate(chat.messages):
        parts = message.content if isinstance(message.content, list) else ()
        for number, part in enumerate(parts):
            if part.type != "image_url":
                continue
            path = f"messages.{index}.content.{number}.image_url"
            if message.role not in _ROLES_WITH_IMAGES:
                raise BadRequest("only messages of user and tool may hold images", param=path)
            images[index, number] = _given_image(part.image_url, path)
    return images


def _given_image(value: str | ImageUrl | None, param: str) -> GivenImage:
    if value is None:
        raise BadRequest("an image_url part needs image_url", param=param)
    if isinstance(value, str):
        return GivenImage(value, param)
    return GivenImage(value.url, param, value.detail == "low")


async def compute_features(
    images: ChatImages, request: EngineRequest, engine: GeneratorClient, turns: Turns
) -> None:
    """Have the model compute the image features that it lacks. Raises as `turns` and `engine`."""
    spans_by_image: dict[bytes, list[ImageSpan]] = {}
    for span in await engine.images_to_compute(request.tokens, request.block_salt, request.images):
        image = images.image_of_run[span.digest]
        spans_by_image.setdefault(image.digest, []).append(span)
    for spans in spans_by_image.values():
        async with turns() as run_in_thread:
            image = images.image_of_run[spans[0].digest]
            await _compute_image(image, spans, engine, run_in_thread)


async def _compute_image(
    image: ReadImage, spans: Sequence[ImageSpan], engine: GeneratorClient, in_thread: RunInThread
) -> None:
    async with engine.setting_aside(image.making_bytes):
        prepared = await in_thread(lambda _: image.prepared())
    numbers = {run.digest: number for number, run in enumerate(image.runs())}
    for span in spans:
        await engine.compute_image(span, prepared.of_run(numbers[span.digest]))
