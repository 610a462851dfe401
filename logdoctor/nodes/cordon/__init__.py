"""Taking nodes out and giving them back: with care, within caps, and only what is ours."""
