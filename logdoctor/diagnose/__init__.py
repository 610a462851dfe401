"""From the records of an attempt to its verdict: episodes, findings, cause and symptoms."""
