"""Shared by the tests of the Log Agent: the guards over the shipped rules and the canary corpus."""

from pathlib import Path

import pytest

from logdoctor.log_agent.canary import causes
from logdoctor.log_agent.guards import Guards
from logdoctor.rules.load import RuleBook

CANARY = Path(__file__).parents[2] / "rules" / "canary"


@pytest.fixture(scope="session")
def cause_lines(book: RuleBook) -> tuple[str, ...]:
    """Every line that tells of a cause."""
    return causes(book, CANARY)


@pytest.fixture(scope="session")
def guards(cause_lines: tuple[str, ...]) -> Guards:
    """Guards without past evidence."""
    return Guards(cause_lines)
