"""Texts for people: in a terminal, on pages, in tables. All functions are pure."""
