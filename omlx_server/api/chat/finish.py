"""Why a choice has ended, in OpenAI's words. Apart, since also a server that can't be one needs it."""

from typing import Literal

Finish = Literal["stop", "length", "tool_calls"]
