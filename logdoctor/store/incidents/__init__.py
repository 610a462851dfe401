"""Incidents: failures grouped, what people do about them, and what is told of them."""
