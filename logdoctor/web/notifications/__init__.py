"""Notifications of incidents: targets, messages and their delivery."""
