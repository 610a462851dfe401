"""Learned rules for people: export to files, import, and explaining what rules do to a line."""
