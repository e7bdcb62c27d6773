"""What requests and overrides may tell a chat template. Constants only; any thread."""

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
