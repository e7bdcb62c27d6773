"""The commands about models: list, pull, show, rm, alias, ps, load, unload and pin."""
