"""The one tree of errors. Each class says what an HTTP client and a CLI user get to see.

OmlxError
├── BadRequest          400  the request is wrong; `param` names the field
│   ├── ContextTooLong  400  code context_length_exceeded, with both numbers
│   ├── PromptTooLong   400  the same, found before tokens were counted
│   │   └── TooManyTokens 400 found while they were
│   ├── GrammarTooComplex 400 code grammar_too_complex: found while it was obeyed
│   ├── NoChatTemplate  400  the model can't chat
│   ├── PreviousResponseNotFound 400 there is nothing to go on from
│   └── UnsupportedMedia 415 the body is not sent as JSON
├── NotAuthorized       401  no or wrong API key
├── Forbidden           403  Host or Origin is not allowed
├── ModelNotFound       404  code model_not_found
├── NotCached           404  nothing of a prompt is known
├── PinNotFound         404
├── ResponseNotFound    404  not stored, or not any more
├── ItemNotFound        404  the same of an item that a request names
├── Conflict            409  not now: it is in use
├── PayloadTooLarge     413  body or prompt over its limit
├── QueueFull           429  the queue is bounded; comes with Retry-After
├── Unavailable         503  not ready, draining or crashed
│   ├── NoMemory        503  code insufficient_memory, with the account of the memory
│   └── NoRoom          503  the same for a model that is to be loaded
├── InternalError       500  a request failed inside the engine
├── LoadFailed          500  code model_load_failed: its files can't be used
├── DeadlineExceeded    504  the request ran out of its time
└── UsageError          CLI  it was asked for wrongly, exit code 2; all others 1
    ├── ConfigError          a setting is wrong; the nearest key is named
    │   └── PlaceUnusable    exit code 1: the machine does not let us have a file or a home
    └── ModelUnavailable     a model can't be found, fetched or read
        ├── NoPlaceForModels exit code 1: their directory can't be made or written, or is full
        └── FetchFailed      exit code 1: network, hub or disk did not do their part
"""


class OmlxError(Exception):
    """Base of every error that is meant to be shown. `str(error)` is the message; `hint` says to
    who runs the program what to do about it."""

    status = 500
    exit_code = 1
    kind = "internal_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.hint = hint


class BadRequest(OmlxError):
    status = 400
    kind = "invalid_request_error"


class ContextTooLong(BadRequest):
    code = "context_length_exceeded"

    def __init__(self, limit: int, prompt_tokens: int, *, reserved: int = 0) -> None:
        """`reserved` of the limit are for the answer; what has `prompt_tokens` must then stay."""
        what = f"what must stay of it, beside {reserved} for the answer, has" if reserved else ""
        # litellm and pydantic-ai recognise the error by the first words, langchain-openai by "the
        # prompt is too long". What is known to be too long is not tokenized to the end, so the
        # count is a lower bound.
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, the prompt is too "
            f"long: {what or 'it has'} at least {prompt_tokens} tokens. Please reduce the length "
            "of the messages.",
            param="messages",
        )


class PromptTooLong(BadRequest):
    code = "context_length_exceeded"


class TooManyTokens(PromptTooLong):
    def __init__(self, most: int, at_least: int) -> None:
        """A text was not encoded to its end: it has `at_least` tokens, and more than `most`."""
        self.at_least = at_least
        super().__init__(
            f"the text is too long: it has at least {at_least} tokens, and {most} are the most"
        )


class GrammarTooComplex(BadRequest):
    """A grammar that compiled, and took too much time or memory at some token."""

    code = "grammar_too_complex"


class NoChatTemplate(BadRequest):
    code = "no_chat_template"


class PreviousResponseNotFound(BadRequest):
    code = "previous_response_not_found"


class UnsupportedMedia(BadRequest):
    status = 415
    code = "unsupported_media_type"


class NotAuthorized(OmlxError):
    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"


class Forbidden(OmlxError):
    status = 403
    kind = "invalid_request_error"
    code = "forbidden"


class ModelNotFound(OmlxError):
    status = 404
    kind = "invalid_request_error"
    code = "model_not_found"


class NotCached(OmlxError):
    status = 404
    kind = "invalid_request_error"
    code = "not_cached"


class PinNotFound(OmlxError):
    status = 404
    kind = "invalid_request_error"
    code = "pin_not_found"


class ResponseNotFound(OmlxError):
    status = 404
    kind = "invalid_request_error"
    code = "response_not_found"


class ItemNotFound(OmlxError):
    status = 404
    kind = "invalid_request_error"
    code = "item_not_found"


class Conflict(OmlxError):
    status = 409
    kind = "invalid_request_error"
    code = "conflict"


class PayloadTooLarge(OmlxError):
    status = 413
    kind = "invalid_request_error"
    code = "request_too_large"


class QueueFull(OmlxError):
    status = 429
    kind = "rate_limit_error"
    code = "queue_full"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(OmlxError):
    status = 503
    kind = "service_unavailable_error"
    code = "unavailable"

    def __init__(self, message: str, *, retry_after: int = 0) -> None:
        """`retry_after` seconds it may be there; 0 where that is not known."""
        super().__init__(message)
        self.retry_after = retry_after


class NoMemory(Unavailable):
    code = "insufficient_memory"

    def __init__(self, account: str, *, fits_without_others: bool = False) -> None:
        """`account` is what it needs beside what is held. `fits_without_others`: it could be served
        if no other model were loaded."""
        self.fits_without_others = fits_without_others
        super().__init__(
            f"there is not enough memory for this request{account and ': '}{account}. What helps: "
            'a shorter prompt, kv_cache.scheme = "affine" or "turboquant", a higher memory.limit.'
        )


class NoRoom(Unavailable):
    code = "insufficient_memory"


class LoadFailed(OmlxError):
    code = "model_load_failed"


class InternalError(OmlxError):
    code = "internal_error"


class DeadlineExceeded(OmlxError):
    status = 504
    kind = "timeout_error"
    code = "deadline_exceeded"


class UsageError(OmlxError):
    """A mistake of whoever started the program."""

    exit_code = 2
    kind = "usage_error"


class ConfigError(UsageError):
    pass


class PlaceUnusable(ConfigError):
    """A config file, a token or a home can't be read or written, whatever was asked for."""

    exit_code = 1


class ModelUnavailable(UsageError):
    pass


class NoPlaceForModels(ModelUnavailable):
    exit_code = 1


class FetchFailed(ModelUnavailable):
    """It was asked for rightly."""

    exit_code = 1


def first_line(error: BaseException) -> str:
    """What it says, without the lines that a user can't use."""
    return (str(error).splitlines() or [type(error).__name__])[0]
