"""The unit of throughput, which each framework chooses."""

from logdoctor.rules.load import RuleBook
from logdoctor.types import Compression


def throughput(of: Compression, book: RuleBook) -> str:
    """Return the unit of throughput in a log, or "" if unknown or ambiguous."""
    reading = [rule for rule in book.filters if any("<throughput>" in metric for metric in rule.metrics)]
    found = {rule.unit for rule in reading if rule.id in of.rules}
    return found.pop() if len(found) == 1 else ""
