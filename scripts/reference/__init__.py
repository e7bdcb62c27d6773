"""The pages of docs/reference/, made from the program itself: `scripts/docs reference`."""
