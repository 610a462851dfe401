"""Telling other systems of incidents: messages, how they look in Slack, their signatures, quiet hours, sending."""
