"""Settings of single models (`models.overrides`): checks, and values in force."""
