"""Answers names of GGUF models that can't be downloaded: Ollama's, and org/name:TAG where TAG is no
type of GGUF."""

import re
from dataclasses import dataclass

from omlx_server.core.model_files.gguf_names import USUAL_TAG
from omlx_server.models.hub import names
from omlx_server.models.hub.names import hub_name

_OLLAMA = re.compile(r"(?:https?://)?(?:www\.|registry\.)?ollama\.(?:com|ai)(?:/|$)", re.IGNORECASE)
_SHORT = "`omlx-server search` lists short names of usual models, such as qwen3-4b"


@dataclass(frozen=True, slots=True)
class ForeignName:
    """A reason why a name is no model, and what to do instead."""

    problem: str
    hint: str


def foreign_name(text: str) -> ForeignName | None:
    """Return the answer to such a name; None for other text."""
    text = text.strip()
    if (host := _OLLAMA.match(text)) is not None:
        return _of_ollama(re.split("[?#]", text[host.end() :], maxsplit=1)[0])
    name, colon, tag = text.rpartition(":")
    repository = hub_name(name) if colon and "/" in name and "/" not in tag else None
    if repository is None:
        return None
    if repository.repo_id.startswith(f"{names.MLX_COMMUNITY}/"):
        problem = f"{text}: a tag names a GGUF file, and {names.MLX_COMMUNITY} has MLX weights only"
        return ForeignName(problem, f"Take the repository without the tag: {repository}")
    return ForeignName(
        f"{text}: {tag!r} is no type of a GGUF file",
        f"Take one such as {repository}:{USUAL_TAG}, or {repository} alone",
    )


def _of_ollama(path: str) -> ForeignName:
    problem = "Ollama's library holds GGUF files: this server serves those that Ollama has got"
    name = path.strip("/").removesuffix("/tags").rpartition("/")[2]
    model = name.partition(":")[0]
    if not re.fullmatch(r"[\w.-]+", model):
        return ForeignName(problem, _SHORT)
    short = names.find(name)
    if short is not None:
        hint = f"The short name {short.name} stands for MLX weights; `omlx-server search {model}`"
        return ForeignName(problem, f"{hint} finds others")
    return ForeignName(problem, f"`omlx-server search {model}` looks for MLX weights; {_SHORT}")
