"""Fixtures of the web tests, for those here that ask an application."""

from tests.web.conftest import guarded, service

__all__ = ["guarded", "service"]
