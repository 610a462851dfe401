"""What filter rules and diagnosis rules have in common while they are learned: language, refusals, trial, life."""
