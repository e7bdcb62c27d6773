"""What the page is told before anybody has entered a key."""

from typing_extensions import TypedDict


class PageOptions(TypedDict):
    """What the page may offer. `needs_key`: the API takes requests with a key only. `admin`: the
    server has admin routes; `needs_token`: these take the admin token only. `models`: the models
    that the server starts with are loaded."""

    version: str
    needs_key: bool
    admin: bool
    needs_token: bool
    models: bool
