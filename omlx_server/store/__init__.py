"""The cold tier: blocks of the prefix cache as files, on a disk or in a store that servers share,
and archives of them."""
