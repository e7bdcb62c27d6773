"""OpenAI's finish reasons, in a module that imports no engine."""

from typing import Literal

Finish = Literal["stop", "length", "tool_calls"]
