"""Vision towers by family."""
