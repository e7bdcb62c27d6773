"""Who holds how much of the machine's memory."""
