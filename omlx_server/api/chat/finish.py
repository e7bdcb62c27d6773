"""Why a choice has ended, in OpenAI's words. This is a module of its own because the other modules
of api/chat take long to import."""

from typing import Literal

Finish = Literal["stop", "length", "tool_calls"]
