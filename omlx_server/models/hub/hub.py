"""Models from Hugging Face: the local cache and the hub's answers. Any thread.

Files of code and pickles are never downloaded.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, get_session, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import (
    build_hf_headers,
    filter_repo_objects,
    hf_raise_for_status,
    tqdm,
)

from omlx_server.errors import FetchFailed, ModelUnavailable, one_line
from omlx_server.models import layout
from omlx_server.models.hub.names import MAIN, repo_id_of
from omlx_server.models.hub.remote import Remote, RemoteFile
from omlx_server.models.hub.tags import is_gguf, with_tag

ALLOWED_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "tokenizer*")
# "tokenizer*" would match these.
REFUSED_FILES = ("*.py", "*.pkl", "*.pickle", "*.pt", "*.pth", "*.bin")

OFFLINE_HINT = "Check the network, or give the directory of a model that is already here."
_RETRY_HINT = "Try again. If it stays so, look at the disk, or set models.dirs to another one."
_ASK_SECONDS = 15.0
_PAUSES = (1.0, 2.0, 4.0, 8.0)
# ValueError: an answer that is no JSON, or an unknown kind of proxy in the environment.
_NO_NETWORK = (
    LocalEntryNotFoundError,
    IncompleteSnapshotError,
    HTTPError,
    ConnectionError,
    ValueError,
)


class NoNetwork(FetchFailed):
    pass


class HubSilent(NoNetwork):
    """The hub did not list a model's files, so nothing was fetched."""


class _Silent(tqdm):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub and its cache; None means Hugging Face's. `pauses`: seconds before each new try."""

    cache_dir: Path | None = None
    endpoint: str | None = None
    pauses: tuple[float, ...] = _PAUSES

    @property
    def root(self) -> Path:
        return self.cache_dir or Path(constants.HF_HUB_CACHE)

    def cached(self, repo_id: str) -> Path | None:
        """Return a complete snapshot in the cache, or None."""
        directory = self.snapshot(repo_id)
        return directory if directory is not None and layout.is_complete(directory) else None

    def snapshot(self, repo_id: str) -> Path | None:
        """Return the snapshot of main, or the newest complete one; else an incomplete main, or
        None."""
        main = self._snapshot(repo_id, MAIN)
        if main is not None and layout.is_complete(main):
            return main
        others = (self._snapshot(repo_id, commit) for commit in self._commits(repo_id))
        return next((path for path in others if path and layout.is_complete(path)), main)

    def _commits(self, repo_id: str) -> list[str]:
        try:
            snapshots = list((self.folder(repo_id) / "snapshots").iterdir())
            return [path.name for path in sorted(snapshots, key=_modified, reverse=True)]
        except OSError:
            return []

    def _snapshot(self, repo_id: str, revision: str) -> Path | None:
        try:
            path = snapshot_download(
                repo_id,
                revision=revision,
                cache_dir=self.cache_dir,
                local_files_only=True,
                allow_patterns=list(ALLOWED_FILES),
                ignore_patterns=list(REFUSED_FILES),
            )
        except (LocalEntryNotFoundError, IncompleteSnapshotError, OSError, ValueError):
            return None
        return Path(path)

    def cached_ids(self) -> list[str]:
        ids = (repo_id_of(path) for path in sorted(self.root.glob("models--*--*")))
        return [repo_id for repo_id in ids if repo_id]

    def folder(self, repo_id: str) -> Path:
        return self.root / f"models--{repo_id.replace('/', '--')}"

    def look(self, repo_id: str, revision: str = MAIN, tag: str = "") -> Remote:
        """Ask for a model's files. Raises as `explained`, but HubSilent for NoNetwork; and
        ModelUnavailable if no GGUF model can be chosen."""
        api = HfApi(endpoint=self.endpoint)
        try:
            with explained(repo_id):
                info = api.model_info(repo_id, revision=revision, timeout=_ASK_SECONDS)
                commit = str(info.sha)
                entries = {entry.path: entry for entry in self._tree(repo_id, commit)}
        except NoNetwork as error:
            raise HubSilent(error.message, hint=error.hint) from error
        wanted = set(
            filter_repo_objects(
                entries, allow_patterns=list(ALLOWED_FILES), ignore_patterns=list(REFUSED_FILES)
            )
        )
        files = tuple(_remote_file(entries[path]) for path in sorted(wanted))
        remote = Remote(repo_id, commit, files, tuple(sorted(entries.keys() - wanted)))
        if not tag and not is_gguf(list(entries)):
            return remote
        architecture = (info.gguf or {}).get("architecture", "")
        return with_tag(remote, [*map(_remote_file, entries.values())], tag, str(architecture))

    def _tree(self, repo_id: str, commit: str) -> Iterator[RepoFile]:
        """Yield a commit's files. HfApi.list_repo_tree has no timeout."""
        address = f"{self.endpoint or constants.ENDPOINT}/api/models/{repo_id}/tree/{commit}"
        url: str | None = f"{address}?recursive=true"
        while url is not None:
            answer = ask(url)
            yield from (RepoFile(**entry) for entry in answer.json() if entry["type"] == "file")
            url = answer.links.get("next", {}).get("url")

    def fetch(
        self,
        repo_id: str,
        into: Path | None,
        *,
        commit: str | None = None,
        only: Sequence[str] = ALLOWED_FILES,
    ) -> Path:
        """Download the files that `only` matches, into the cache or the directory `into`. With a
        `commit` refs/main does not move. Raises as `explained`."""
        with explained(repo_id):
            path = snapshot_download(
                repo_id,
                revision=commit,
                cache_dir=self.cache_dir,
                local_dir=into,
                endpoint=self.endpoint,
                allow_patterns=list(only),
                ignore_patterns=list(REFUSED_FILES),
                tqdm_class=_Silent,
            )
        return Path(path)

    def make_newest(self, repo_id: str, commit: str) -> None:
        ref = self.folder(repo_id) / "refs" / MAIN
        ref.parent.mkdir(parents=True, exist_ok=True)
        new = self.folder(repo_id) / f"{MAIN}.new"
        new.write_text(commit)
        new.replace(ref)

    def url(self, remote: Remote, path: str) -> str:
        return str(hf_hub_url(remote.repo_id, path, revision=remote.commit, endpoint=self.endpoint))

    def delete(self, repo_id: str) -> None:
        if os.path.lexists(self.folder(repo_id)):
            shutil.rmtree(self.folder(repo_id))


def ask(url: str, query: Mapping[str, Any] | None = None) -> Any:
    """Return the hub's answer. Raises errors of huggingface_hub."""
    headers = build_hf_headers()
    answer = get_session().get(url, params=query, headers=headers, timeout=_ASK_SECONDS)
    hf_raise_for_status(answer)
    return answer


def folder_of(path: Path) -> Path:
    """Return the cache's folder of a snapshot; other paths unchanged."""
    folder = path.parent.parent
    return folder if path.parent.name == "snapshots" and repo_id_of(folder) else path


def folder_with(file: Path) -> Path | None:
    """Return the folder of a hub's cache that has a file, or None."""
    return next((parent for parent in file.parents if repo_id_of(parent)), None)


def remove_files(folder: Path, files: Sequence[Path]) -> None:
    """Remove files from a folder of a hub's cache, by their names in all snapshots; the whole
    folder if it has no others."""
    snapshots = folder / "snapshots"
    leads_to = {path: path.resolve() for path in snapshots.rglob("*") if not path.is_dir()}

    def name_of(path: Path) -> tuple[str, ...]:
        return path.relative_to(snapshots).parts[1:]

    names = {name_of(path) for path, file in leads_to.items() if file in files}
    kept = {path: file for path, file in leads_to.items() if name_of(path) not in names}
    if not kept:
        shutil.rmtree(folder)
        return
    for path in leads_to.keys() - kept.keys():
        path.unlink()
    for file in {*leads_to.values()} - {*kept.values()}:
        if file.is_relative_to(folder.resolve()):
            file.unlink(missing_ok=True)


def _modified(path: Path) -> float:
    return path.stat().st_mtime


@contextmanager
def explained(repo_id: str) -> Iterator[None]:
    """Turn errors of the hub and the network into ModelUnavailable."""
    try:
        yield
    except GatedRepoError as error:
        raise ModelUnavailable(
            f"{repo_id} is gated on Hugging Face",
            hint=f"Accept its terms on huggingface.co/{repo_id}, then set HF_TOKEN.",
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelUnavailable(
            f"{repo_id} was not found on Hugging Face",
            hint="Check the spelling; a private model needs HF_TOKEN.",
        ) from error
    except RevisionNotFoundError as error:
        raise ModelUnavailable(
            f"{repo_id} has no such revision",
            hint="It has to be a branch, a tag or a commit; none is the newest of main.",
        ) from error
    except HFValidationError as error:
        raise ModelUnavailable(
            f"{repo_id} can't be the name of a model on Hugging Face", hint="It has to be org/name."
        ) from error
    except HfHubHTTPError as error:
        raise FetchFailed(
            f"Could not download {repo_id}: {one_line(error)}",
            hint="Try again later: the hub itself says this.",
        ) from error
    except _NO_NETWORK as error:
        raise NoNetwork(
            f"Could not download {repo_id}: {one_line(error)}", hint=OFFLINE_HINT
        ) from error
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise FetchFailed(f"Could not download {repo_id}: {reason}", hint=_RETRY_HINT) from error


def _remote_file(entry: RepoFile) -> RemoteFile:
    sha256 = entry.lfs.sha256 if entry.lfs is not None else ""
    return RemoteFile(entry.path, int(entry.size), str(sha256), str(entry.blob_id))


HUB = Hub()
