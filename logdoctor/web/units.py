"""What throughput is counted in: each framework prints it in a unit of its own."""

from logdoctor.rules.load import RuleBook
from logdoctor.types import Compression


def throughput(of: Compression, book: RuleBook) -> str:
    """Return the unit of the throughput in a log; "" when it is not known, or rules that took lines read different
    ones."""
    reading = [rule for rule in book.filters if any("<throughput>" in metric for metric in rule.metrics)]
    found = {rule.unit for rule in reading if rule.id in of.rules}
    return found.pop() if len(found) == 1 else ""
