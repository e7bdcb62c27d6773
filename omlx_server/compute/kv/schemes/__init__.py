"""How keys and values are stored: as they came or in few bits, and attention on what is stored."""
