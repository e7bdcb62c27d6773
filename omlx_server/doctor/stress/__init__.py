"""The stress test of a model: its figures, its report, and the program that takes memory."""
