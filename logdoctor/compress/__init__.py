"""Bytes to what matters: cutting lines, taking out what rules explain, keeping what may be evidence."""
