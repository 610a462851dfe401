"""Nodes: tests, cordons, actions, histories."""
