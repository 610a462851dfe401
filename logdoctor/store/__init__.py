"""What outlives a process: records, the journal, and the archive of raw logs."""
