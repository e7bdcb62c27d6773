"""What scenarios ask for: a tool and an answer of a fixed form, which a tiny model fills, too.

Every field is bounded, so that a forced answer ends whatever the model would say. Only for clients
that bring pydantic.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

QUESTION = "What is the weather in Paris?"
TOKENS = 60
"""Enough for a call and for the form."""

City = Literal["Paris", "Rome"]
CITIES = ("Paris", "Rome")


class Weather(BaseModel):
    """The weather as the answer tells it."""

    model_config = ConfigDict(extra="forbid")
    sky: Literal["clear", "cloudy"]
    windy: bool


def get_weather(city: City) -> str:
    """The weather in a city."""
    return f"Rain in {city}"
