"""Compression: cut bytes into lines, drop the lines that filter rules explain, keep possible evidence."""
