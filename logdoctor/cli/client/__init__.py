"""A client of a service's JSON API, with the data folder's calls and types."""
