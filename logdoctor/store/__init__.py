"""What outlives a process: records, the log, and its archive."""
