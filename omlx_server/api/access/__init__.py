"""Who may ask for what, and how much at once."""
