"""The service over HTTP: the intake of logs, the API, and the pages."""
