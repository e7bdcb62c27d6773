"""Token ids to what an answer says, piece by piece."""
