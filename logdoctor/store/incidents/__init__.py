"""Incidents: grouped failures, what people do about them, and their notifications."""
