"""Jobs, their attempts, streams and verdicts: intake, API and pages."""
