"""What was learned, and from what: rules, confirmations, overrides, exchanges with models."""
