"""How memory is shared out, and what a step takes of it. Bytes everywhere; pure arithmetic."""
