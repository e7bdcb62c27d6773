"""Tests of what ranks say to each other, and of what the others do."""
