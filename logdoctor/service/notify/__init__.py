"""Notifications to other systems: messages, their form in Slack, signatures, quiet hours, sending."""
