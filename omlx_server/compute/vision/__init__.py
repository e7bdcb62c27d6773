"""Images: what is loaded beside a language model for them, and how they enter it.

    family_of(config)                     how a family is loaded, and what its model needs
    loading_tower(family, config, path)   the tower; family.sections(config) go to `use_axes`
    tower.computing(pixels, grid)         Features of one image, which any request may share
    WithImages(model, view, entries, scale)   a model for one forward: called as the model itself is
        at_positions, moved, in_blocks    views of the caches: where tokens are, whom they see
        Entry(row, start, features)       features, or a part of them, in the places of tokens

Nothing here keeps anything of a request between forwards.
"""
