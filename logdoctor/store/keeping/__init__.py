"""The data folder itself: copies, checks, repair, leases, tokens, sessions, the audit, work that waits."""
