"""The document as it is for one server of the tests: the names of its models stand in it, and what
only code can judge is left out. Otherwise nearly all that is made from it would be refused."""

import json
from collections.abc import Sequence
from typing import Any

from omlx_server.api.chat import request as schema
from omlx_server.api.openai import completion_prompts
from omlx_server.api.responses import schema as responses
from omlx_server.text.grammar import to_grammar
from tests.api.description.server import CHAT, EMBEDDING, RANKING
from tests.text import makers

Json = dict[str, Any]

_VOCABS = {CHAT: makers.FAMILIES["byte_level"]().get_vocab_size(), EMBEDDING: 30_522}
_ANY_ID = (0, 1 << 31)
_LEFT_OUT = {
    *schema.UNSUPPORTED,
    *completion_prompts.UNSUPPORTED,
    *(responses.UNSUPPORTED.keys() - {"prompt"}),
    *to_grammar.FIELDS,
    # They need another field, or something that is there.
    *("stream_options", "top_logprobs", "modalities", "best_of", "suffix", "echo", "logit_bias"),
    *("tool_choice", "previous_response_id", "truncate_prompt_tokens", "dimensions"),
    "content",
    "stop_token_ids",
}
_MODELS = {
    "ChatRequest": CHAT,
    "CompletionRequest": CHAT,
    "MessagesRequest": CHAT,
    "CountRequest": CHAT,
    "ResponsesRequest": CHAT,
    "InputTokensRequest": CHAT,
    "CompactRequest": CHAT,
    "TokenizeRequest": CHAT,
    "DetokenizeRequest": CHAT,
    "EmbeddingRequest": EMBEDDING,
    "RerankRequest": RANKING,
    "OllamaChatRequest": CHAT,
    "GenerateRequest": CHAT,
    "EmbedRequest": EMBEDDING,
    "EmbeddingsRequest": EMBEDDING,
    "ShowRequest": CHAT,
    "PullRequest": EMBEDDING,
}
_NEEDED = {
    "Message": ("content",),
    "ChatContentPart": ("text",),
    "ContentBlock": ("text",),
    "ContentPart": ("text",),
    "TokenizeRequest": ("prompt",),
    "ResponsesRequest": ("input",),
    "InputTokensRequest": ("input",),
    "CompactRequest": ("input",),
}


def narrowed(document: Json) -> Json:
    document = json.loads(json.dumps(document))
    schemas = document["components"]["schemas"]
    for body, model in _MODELS.items():
        _narrow(schemas[body], model)
    del schemas["TokenizeRequest"]["properties"]["messages"]
    for name, needed in _NEEDED.items():
        _need(schemas[name], needed)
    for name in ("ChatContentPart", "ContentBlock", "ContentPart"):
        schemas[name]["properties"]["type"] = {"enum": ["text"]}
    schemas["Message"]["properties"]["role"] = {"enum": ["system", "user"]}
    for name in ("ResponsesRequest", "InputTokensRequest", "CompactRequest"):
        items = schemas[name]["properties"]["input"]["anyOf"][1]
        del schemas[name]["properties"]["prompt"]
        items |= {"items": {"$ref": "#/components/schemas/MessageItem"}, "minItems": 1}
    return document


def _need(schema: Json, names: Sequence[str]) -> None:
    """These must be there, and not be null."""
    schema["required"] = sorted({*schema.get("required", ()), *names})
    for name in names:
        options = schema["properties"][name]["anyOf"]
        schema["properties"][name] = {"anyOf": [one for one in options if one != {"type": "null"}]}


def _narrow(body: Json, model: str) -> None:
    _bound_ids(body, _VOCABS.get(model, 0))
    properties = body["properties"]
    needed = "model" in body.get("required", ())
    properties["model"] = {"enum": [model] if needed else [model, None]}
    for name in _LEFT_OUT & properties.keys():
        del properties[name]


def _bound_ids(node: Any, vocab: int) -> None:
    """In lists of token ids only such as the model has."""
    if isinstance(node, dict):
        items = node.get("items", {})
        if (items.get("minimum"), items.get("maximum")) == _ANY_ID:
            items["maximum"] = vocab - 1
        for value in node.values():
            _bound_ids(value, vocab)
    elif isinstance(node, list):
        for value in node:
            _bound_ids(value, vocab)
