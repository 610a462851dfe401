"""Counts of requests and answers, under a few labels."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Scope

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"))
_SENDING = frozenset(("ingest", "push"))
"""Tags of the routes that receive logs."""
REFUSALS = ("400", "401", "403", "404", "408", "409", "413", "415", "422", "429", "500", "503", "507")


class Traffic(Collector):
    """Counts answers by method, route template and status class, and refusals to senders by status. Only the loop
    counts."""

    def __init__(self) -> None:
        # each class exists from the start, so that a share of errors is 0 and not missing
        self._answers = Counter({("GET", "none", f"{first}xx"): 0 for first in (2, 3, 4, 5)})
        self._refused = Counter(dict.fromkeys((*REFUSALS, "other"), 0))

    def count(self, scope: Scope, status: int) -> None:
        """Count an answer."""
        route = scope.get("route")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        # requested paths are arbitrary: only the path of one of our routes is a label
        path = getattr(route, "path", "") or scope.get("root_path") or "none"  # the second: where files are mounted
        self._answers[method, path, f"{status // 100}xx"] += 1
        if status >= 400 and _SENDING & set(getattr(route, "tags", ())):
            self._refused[str(status) if str(status) in REFUSALS else "other"] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the counts."""
        answers = CounterMetricFamily(
            "logdoctor_http_requests",
            "Requests that were answered, by the template of their path and the class of the status.",
            labels=["method", "route", "status"],
        )
        for labels, count in list(self._answers.items()):
            answers.add_metric(labels, count)
        yield answers
        refused = CounterMetricFamily(
            "logdoctor_sender_refusals", "Requests of senders of logs that were refused.", labels=["status"]
        )
        for status, count in list(self._refused.items()):
            refused.add_metric([status], count)
        yield refused
