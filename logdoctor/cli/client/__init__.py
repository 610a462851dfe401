"""A running service, asked over its JSON API: what commands call on the data folder, with the same types."""
