"""Launchers: one module for each way to start the probe on nodes."""
