"""The engine as the event loop's thread sees it."""
