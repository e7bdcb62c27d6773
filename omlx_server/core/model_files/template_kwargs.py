"""The variables that requests and overrides may pass to a chat template."""

ALLOWED_KWARGS = frozenset(
    {
        "clear_thinking",
        "date_string",
        "enable_thinking",
        "preserve_thinking",
        "reasoning_effort",
        "thinking",
        "thinking_budget",
    }
)
