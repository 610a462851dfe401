"""An archive of logs, diagnosed in one run: sources, shards, rows."""
