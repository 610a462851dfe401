"""Incidents: failures grouped by their cause, and the page of a failure."""
