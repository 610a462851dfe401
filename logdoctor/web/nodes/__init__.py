"""Nodes, their tests and cordons, and the actions that wait for a person."""
