"""Memory budgets, and estimates of what a step takes. Bytes; pure arithmetic."""
