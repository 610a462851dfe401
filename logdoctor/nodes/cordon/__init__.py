"""Cordon and uncordon nodes: within caps, and only our own cordons are undone."""
