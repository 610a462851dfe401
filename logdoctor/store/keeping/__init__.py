"""The data folder itself: backups, checks, repair, leases, tokens, sessions, the audit, queued work."""
