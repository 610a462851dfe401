"""Past cases: what people say a failure was."""
