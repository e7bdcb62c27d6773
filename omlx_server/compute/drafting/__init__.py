"""Drafts of what drafts beside the text: a draft model, or heads of the model itself."""
