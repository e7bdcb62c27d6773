"""Why a choice has ended, in OpenAI's words. Apart from the rest, which takes long to import."""

from typing import Literal

Finish = Literal["stop", "length", "tool_calls"]
