"""Shared by the tests of the Log Agent: the guards over the shipped rules and the canary corpus."""

from pathlib import Path

import pytest

from logdoctor.learning.filters.canary import causes
from logdoctor.learning.filters.guards import FilterGuards
from logdoctor.rules.load import RuleBook

CANARY = Path(__file__).parents[2] / "rules" / "canary"


@pytest.fixture(scope="session")
def cause_lines(book: RuleBook) -> tuple[str, ...]:
    """Every line that tells of a cause."""
    return causes(book, CANARY)


@pytest.fixture(scope="session")
def guards(cause_lines: tuple[str, ...]) -> FilterGuards:
    """FilterGuards without past evidence."""
    return FilterGuards(cause_lines)
