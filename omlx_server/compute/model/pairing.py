"""Makes a pair of a loaded model and a loaded draft model."""

from dataclasses import replace

from omlx_server.compute.architectures.pair import Pair
from omlx_server.compute.model.fingerprint import together_fingerprint
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.core.ranks import ALONE
from omlx_server.core.speculation.methods import DraftVerification
from omlx_server.errors import ModelUnavailable


def check_can_draft(drafter: LoadedModel) -> None:
    """Raise ModelUnavailable for a model that can't take back tokens."""
    if drafter.verifies is DraftVerification.NEVER:
        raise ModelUnavailable(
            "the draft model can't take back tokens that it drafted",
            hint="choose another speculation.draft_model",
        )


def paired(target: LoadedModel, drafter: LoadedModel) -> LoadedModel:
    return replace(
        target,
        model=Pair(target.model, drafter.model, drafter.dims.vocab),
        fingerprint=together_fingerprint(target.fingerprint, drafter.fingerprint),
        weight_bytes=target.weight_bytes + drafter.weight_bytes,
        verifies=target.verifies & drafter.verifies,
        drafter=drafter,
        ranks=ALONE,
    )
