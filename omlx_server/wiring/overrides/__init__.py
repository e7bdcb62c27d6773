"""What single models have otherwise (`models.overrides`): its checks, and what of it counts."""
