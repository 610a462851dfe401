"""The service over HTTP: taking logs in, answering about verdicts, and the pages."""
