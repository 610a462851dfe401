"""The past cases of a service."""

from logdoctor.cli.client.checks import require_known
from logdoctor.cli.client.connection import Connection, path
from logdoctor.cli.client.refusing import refused_as
from logdoctor.errors import ConfirmationRefused
from logdoctor.service.confirming import Ruling
from logdoctor.store.learning.confirmed import Confirmation, ConfirmationPage
from logdoctor.web.jobs.answers import VerdictOut


class ServedCases:
    """The calls of `store.learning.confirmed.Confirmed`, over HTTP; the token says who decides."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def page(
        self, cursor: str | None = None, limit: int = 50, reason: str | None = None, withdrawn: bool = False
    ) -> ConfirmationPage:
        """Return a page of the cases, newest first."""
        wanted = {"limit": limit, "reason": reason, "withdrawn": withdrawn}
        found = self._connection.page(ConfirmationPage, path("cases"), cursor, **wanted)
        for one in found.items:
            self._known(one)
        return found

    def one(self, id: int) -> Confirmation:
        """Return the case with this id."""
        with refused_as(ConfirmationRefused, "List the cases."):
            return self._known(self._connection.get(Confirmation, path("cases", id)))

    def withdraw(self, id: int, by: str, why: str, at: float) -> Confirmation:
        """Withdraw the case, and return it."""
        with refused_as(ConfirmationRefused, "List the cases."):
            return self._known(self._connection.delete(Confirmation, path("cases", id), why=why))

    def current(self, job: str, attempt: int) -> int | None:
        """Return the id of the current verdict on an attempt; None without one."""
        found = self._connection.get_if_any(VerdictOut, path("jobs", job, "attempts", attempt, "verdict"))
        return None if found is None else found.id

    def confirm(self, verdict: int, ruling: Ruling) -> Confirmation:
        """Confirm or correct a verdict, and return the case."""
        words = {"fix": ruling.fix, "comment": ruling.comment, "suggestion": ruling.suggestion}
        step, body = "confirm", dict[str, object](words)
        if ruling.reason:
            lines = [{"stream": stream, "line": line} for stream, line in ruling.evidence]
            step = "correct"
            body |= {"reason": ruling.reason, "recovery": ruling.recovery, "fault": ruling.fault, "evidence": lines}
            if ruling.nodes is not None:
                body["suspects"] = list(ruling.nodes)
        with refused_as(ConfirmationRefused, "Look for its number on the page of the job."):
            return self._known(self._connection.post(Confirmation, path("verdicts", verdict, step), body))

    def _known(self, case: Confirmation) -> Confirmation:
        require_known(self._connection, case.reason, case.fault, case.recovery)
        return case
