"""Jobs, attempts, verdicts, runs, scores, and what reports need of them."""
