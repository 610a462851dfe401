"""Jobs, their attempts, streams and verdicts: sent, read and shown."""
