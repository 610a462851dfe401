"""Who is notified of incidents, and what became of each message."""
