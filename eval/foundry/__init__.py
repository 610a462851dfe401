"""Failures that really happened, with truth by injection: see CARD.md."""
