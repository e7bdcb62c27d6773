"""Models from Hugging Face: the local cache that other programs share, and downloads.

Any thread may call it. Files of code and pickles are never downloaded.
"""

from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HTTPError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from omlx_server.errors import ModelUnavailable, first_line
from omlx_server.models import layout

ALLOWED_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "tokenizer*")
# "tokenizer*" would let these through.
REFUSED_FILES = ("*.py", "*.pkl", "*.pickle", "*.pt", "*.pth", "*.bin")

OFFLINE_HINT = "Check the network, or give the directory of a model that is already here."
DOWNLOADS = ".downloads"


@dataclass(frozen=True, slots=True)
class Hub:
    """Where the cache is, and which server has the models; None means Hugging Face's defaults."""

    cache_dir: Path | None = None
    endpoint: str | None = None

    def cached(self, repo_id: str) -> Path | None:
        """The newest complete snapshot of a model in the cache. Never uses the network."""
        try:
            path = snapshot_download(
                repo_id,
                cache_dir=self.cache_dir,
                local_files_only=True,
                allow_patterns=list(ALLOWED_FILES),
                ignore_patterns=list(REFUSED_FILES),
            )
        except (LocalEntryNotFoundError, IncompleteSnapshotError):
            return None
        directory = Path(path)
        return None if layout.missing_from(directory) else directory

    def cached_ids(self) -> list[str]:
        """The ids of all models of which the cache holds something."""
        root = self.cache_dir or Path(constants.HF_HUB_CACHE)
        names = (path.name for path in sorted(root.glob("models--*--*")))
        return ["/".join(name.split("--", 2)[1:]) for name in names]

    def download(self, repo_id: str, models_dir: Path | None) -> Path:
        """Downloads into the cache, or into `models_dir/org/name`; goes on where it was cut off."""
        if models_dir is None:
            directory = self._fetch(repo_id, None)
            layout.check(directory)
            return directory
        staging = models_dir / DOWNLOADS / repo_id
        layout.check(self._fetch(repo_id, staging))
        target = models_dir / repo_id
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            staging.rename(target)
        except OSError:
            # Another process may have been first, and its files serve as well.
            if layout.missing_from(target):
                raise
        return target

    def _fetch(self, repo_id: str, local_dir: Path | None) -> Path:
        try:
            path = snapshot_download(
                repo_id,
                cache_dir=self.cache_dir,
                local_dir=local_dir,
                endpoint=self.endpoint,
                allow_patterns=list(ALLOWED_FILES),
                ignore_patterns=list(REFUSED_FILES),
            )
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
        except (LocalEntryNotFoundError, IncompleteSnapshotError, HTTPError, OSError) as error:
            raise ModelUnavailable(
                f"Could not download {repo_id}: {first_line(error)}", hint=OFFLINE_HINT
            ) from error
        return Path(path)


HUB = Hub()
