"""The report as in the OpenAPI document, with an example."""

from logdoctor.jobs.report import reckon
from logdoctor.types import Failures, ReportedFailure

_AT = 1795255505.2
_FAILURE = ReportedFailure("ECC Error", "Infrastructure", "rule", _AT - 7200, _AT, _AT + 1800, 1024)

EXAMPLES = (reckon(Failures([_FAILURE], False), _AT - 86_400, None),)
"""One of each answer."""
