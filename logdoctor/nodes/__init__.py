"""Node tests, the actions that follow from verdicts and tests, and cordons."""
