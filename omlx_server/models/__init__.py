"""Models as files on disk: the catalogue, downloads, conversion and discovery. No mlx here."""
