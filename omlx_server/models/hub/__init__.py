"""Models from a hub: found, downloaded, checked."""
