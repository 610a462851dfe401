"""The import of rules from a request's body, all or none."""

import threading
import time

from logdoctor.errors import Busy
from logdoctor.learning.files.imports import File, Imported, import_files
from logdoctor.learning.filters.guards import FilterGuards
from logdoctor.learning.filters.life import quotes
from logdoctor.web.dependencies import AppState
from logdoctor.wiring import failures

_MOST = 200  # rules of a request, about 50 ms each; the command line takes more, beside the service
_PAGE = 1000  # verdicts whose evidence is read at once


class RuleImporter:
    """Imports rules, one request at a time. Its guards are made once; before each import they learn the citations of
    new verdicts. The first import reads those of all verdicts (1.7 s for 10,000), so that the start does not."""

    def __init__(self, state: AppState) -> None:
        service = self._service = state.service
        self._guards = FilterGuards(state.options.causes)
        self._diagnosis_guards = failures.diagnosis_guards(service.scanner, service.records)
        self._importing = threading.Lock()
        self._seen = 0  # the last verdict whose citations the guards know

    def enter(self, body: bytes, kind: str | None, by: str) -> list[Imported]:
        """Import the rules of a YAML body, and return one result for each. `Busy` during another import."""
        if not self._importing.acquire(blocking=False):
            raise Busy("the service", "rules are being imported already", "Try again later.")
        try:
            self._catch_up()
            file, rules = File("the body", lambda: body), self._service.rules
            return import_files([file], kind, self._guards, rules, by, time.time(), _MOST, self._diagnosis_guards)
        finally:
            self._importing.release()

    def _catch_up(self) -> None:
        """Add the lines that new verdicts cite to the guards."""
        while page := self._service.records.evidence_after(self._seen, _PAGE):
            self._guards.remember(line for _, evidence in page for line in quotes(evidence))
            self._seen = page[-1][0]
