"""Commands about models: list, pull, rm, alias, show, load and unload."""
