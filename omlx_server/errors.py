"""All errors that are meant to be shown. A class has the HTTP status, the `code` for clients and
the program's exit code.

ClientError: the request itself is wrong. NotNow: the same request may be served later; has a
Retry-After if the time is known. UsageError: a mistake of the person who started the program.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST_LINE = 500


class OmlxError(Exception):
    """Base of every error that is meant to be shown. `param` names the wrong field of the request;
    `hint` tells the user of the program what to do.

    `quotes_request`: the message may hold words of the request, so it is not logged. `reason` is
    what is logged: the message in one line, empty if it may quote the request.
    """

    status = 500
    exit_code = 1
    kind = "internal_error"
    code: str | None = None
    quotes_request = False

    def __init__(self, message: str, *, param: str | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.hint = hint
        self.reason = "" if self.quotes_request else one_line(self)

    @property
    def with_hint(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class ClientError(OmlxError):
    """The request itself is wrong; sent again as it is, it fails again."""

    kind = "invalid_request_error"
    quotes_request = True


class BadRequest(ClientError):
    status = 400


class BadBody(BadRequest):
    """The body is not whole, or holds no JSON object."""

    quotes_request = False


class ContextTooLong(BadRequest):
    code = "context_length_exceeded"
    quotes_request = False

    def __init__(self, limit: int, prompt_tokens: int, *, reserved: int = 0, why: str = "") -> None:
        """Make the error; counts are tokens. Where `reserved` of the `limit` are kept for the
        answer, `prompt_tokens` is the part of the prompt that can't be dropped. `why` is said
        instead of these numbers."""
        what = "it"
        if reserved:
            what = f"what must stay of it, beside {reserved} for the answer,"
        reason = why or f"{what} has at least {prompt_tokens} tokens"
        # litellm and pydantic-ai recognise the error by the first words, langchain-openai by "the
        # prompt is too long". A text that is known to be too long is not tokenized to its end, so
        # the count is a lower bound.
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, the prompt is too "
            f"long: {reason}. Please reduce the length of the messages.",
            param="messages",
        )


class PromptTooLong(BadRequest):
    """A prompt is too long, and its tokens are not known."""

    code = "context_length_exceeded"
    quotes_request = False

    def of_context(self, limit: int) -> ContextTooLong:
        """Return the error of a whole prompt for a context of `limit` tokens."""
        return ContextTooLong(limit, limit + 1, why=self.message)


class TooManyTokens(PromptTooLong):
    def __init__(self, most: int, at_least: int) -> None:
        self.at_least = at_least
        super().__init__(
            f"the text is too long: it has at least {at_least} tokens, and {most} are the most"
        )

    def of_context(self, limit: int) -> ContextTooLong:
        return ContextTooLong(limit, self.at_least)


class NoSeam(PromptTooLong):
    """A long text has no place where it could be cut to be tokenized."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"the text is too long: more than {most} bytes of it in a row have no blank between "
            "words, no line and no mark"
        )


class GrammarTooComplex(BadRequest):
    """The grammar compiled, but took too much time or memory at some token."""

    code = "grammar_too_complex"


class AdapterUnusable(BadRequest):
    """The files of an adapter can't be read, or don't fit the model."""

    code = "adapter_unusable"


class NoChatTemplate(BadRequest):
    code = "no_chat_template"


class PreviousResponseNotFound(BadRequest):
    code = "previous_response_not_found"


class UnsupportedMedia(BadRequest):
    status = 415
    code = "unsupported_media_type"
    quotes_request = False


class NotAuthorized(OmlxError):
    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"


class Forbidden(ClientError):
    status = 403
    code = "forbidden"
    quotes_request = False


class NotFound(ClientError):
    status = 404


class ModelNotFound(NotFound):
    code = "model_not_found"


class AdapterNotFound(NotFound):
    code = "adapter_not_found"


class NotCached(NotFound):
    """Nothing of the prompt is cached."""

    code = "not_cached"


class PinNotFound(NotFound):
    code = "pin_not_found"


class ResponseNotFound(NotFound):
    code = "response_not_found"


class ItemNotFound(NotFound):
    code = "item_not_found"


class Conflict(ClientError):
    """The model is in use, or its files have changed."""

    status = 409
    code = "conflict"


class PayloadTooLarge(ClientError):
    status = 413
    code = "request_too_large"
    quotes_request = False


class NotNow(OmlxError):
    """The request can't be served now; later it may be."""

    def __init__(self, message: str, *, retry_after: int = 0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFull(NotNow):
    status = 429
    kind = "rate_limit_error"
    code = "queue_full"


class Unavailable(NotNow):
    status = 503
    kind = "service_unavailable_error"
    code = "unavailable"


class RequestTimeout(OmlxError):
    status = 408
    kind = "timeout_error"
    code = "request_timeout"


class NoMemory(Unavailable):
    code = "insufficient_memory"

    def __init__(self, account: str, *, fits_without_others: bool = False) -> None:
        """Take `account`, the memory that the request needs and that is held.
        `fits_without_others`: the request would fit if no other model were loaded."""
        self.fits_without_others = fits_without_others
        super().__init__(
            f"there is not enough memory for this request{account and ': '}{account}. What helps: "
            'a shorter prompt, kv_cache.scheme = "affine" or "turboquant", a higher memory.limit.'
        )


class NoRoom(Unavailable):
    """There is not enough memory to load a model."""

    code = "insufficient_memory"


class LoadFailed(OmlxError):
    code = "model_load_failed"


class InternalError(OmlxError):
    code = "internal_error"


class ModelError(OmlxError):
    """The model computed what is no number."""

    code = "model_error"


class DeadlineExceeded(OmlxError):
    status = 504
    kind = "timeout_error"
    code = "deadline_exceeded"


class UsageError(OmlxError):
    """A mistake of the person who started the program."""

    exit_code = 2
    kind = "usage_error"


class ConfigError(UsageError):
    """A setting is wrong."""


class PlaceUnusable(ConfigError):
    """A config file, a token file or the home directory can't be used; no setting is wrong."""

    exit_code = 1


class ModelUnavailable(UsageError):
    """A model can't be found, fetched or read."""


class NoPlaceForModels(ModelUnavailable):
    """A directory of models can't be written, or is full."""

    exit_code = 1


class FetchFailed(ModelUnavailable):
    """The model was named correctly, but network, hub or disk failed."""

    exit_code = 1


def how_to_install(extra: str) -> str:
    """Return the hint for a missing package of an extra; there is no release on PyPI."""
    return f"uv tool install '.[{extra}]', in the clone; for pip and pipx see docs/install.md"


def one_line(error: BaseException) -> str:
    """Return the message in one line of at most 500 characters, or the name of the error's
    class."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}..."


@contextmanager
def system_errors_as(kind: type[OmlxError], what: str, hint: str = "") -> Iterator[None]:
    """Raise an OSError of the block within as an error of class `kind`: `what`, a colon and the
    system's reason."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}", hint=hint) from error
