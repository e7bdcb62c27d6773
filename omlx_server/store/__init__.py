"""The cold tier: blocks of the prefix cache on a disk or in a shared store, and their archives."""
