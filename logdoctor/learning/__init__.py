"""What learned filter rules and diagnosis rules share: language, refusals, back-tests, life cycle."""
