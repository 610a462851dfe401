"""Past cases: failures that were confirmed, found again by digest and by likeness."""
