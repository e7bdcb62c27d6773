"""Parses names of the hub's models: org/name, org/name@revision, an address, or a short name."""

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

from omlx_server.models.hub import short_names

MAIN = "main"
LONGEST_NAME = 1024
"""The most characters of what may name a model."""
_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_REVISION = re.compile(r"[\w.-]+")
_SCHEME = re.compile(r"https?://", re.IGNORECASE)
_HUB_SCHEME = "hf://"
_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co", "www.hf.co")
# Words in place of the organisation, in addresses of other things than models.
_NO_ORGS = ("api", "blog", "collections", "datasets", "docs", "models", "papers", "spaces")
# Words before the revision, in addresses of directories, files and commits.
_PAGES = ("tree", "blob", "resolve", "raw", "commit", "commits")


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository of the hub at a branch, tag or commit."""

    repo_id: str
    revision: str = MAIN

    def __str__(self) -> str:
        return self.repo_id if self.revision == MAIN else f"{self.repo_id}@{self.revision}"


def hub_name(text: str) -> HubName | None:
    if len(text) > LONGEST_NAME:
        return None
    text = text.strip()
    short = short_names.find(text)
    if short is not None:
        return HubName(short.repo_id)
    if text.lower().startswith(_HUB_SCHEME):
        return _of_path(text[len(_HUB_SCHEME) :])
    address = _SCHEME.sub("", text, count=1)
    mirror = _SCHEME.sub("", os.environ.get("HF_ENDPOINT", ""), count=1).rstrip("/").lower()
    for root in filter(None, (*_HOSTS, mirror)):
        if f"{address}/".lower().startswith(f"{root}/"):
            path = address[len(root) :]
            return _of_path(re.split("[?#]", path, maxsplit=1)[0])
    repo_id, _, revision = text.partition("@")
    return _checked(repo_id, revision or MAIN) if not text.endswith("@") else None


def _of_path(path: str) -> HubName | None:
    words = [unquote(word) for word in path.split("/") if word]
    if len(words) < 2 or words[0] in _NO_ORGS:
        return None
    is_page = len(words) > 3 and words[2] in _PAGES
    revision = words[3] if is_page else MAIN
    repo_id, _, named = "/".join(words[:2]).partition("@")
    return _checked(repo_id, named or revision)


def _checked(repo_id: str, revision: str) -> HubName | None:
    if _REPO_ID.fullmatch(repo_id) and _REVISION.fullmatch(revision):
        return HubName(repo_id, revision)
    return None
