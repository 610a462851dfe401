"""Rules that come in a request's body: entered together or not at all."""

import threading
import time

from logdoctor.errors import Busy
from logdoctor.learning.files.imports import File, Imported, import_files
from logdoctor.learning.filters.guards import FilterGuards
from logdoctor.learning.filters.life import quotes
from logdoctor.web.dependencies import AppState
from logdoctor.wiring import failures

_MOST = 200  # rules of a request, each of which costs about 50 ms; more by the command line, beside the service
_PAGE = 1000  # verdicts whose evidence is read at once


class RuleImporter:
    """Enters rules, one request at a time. Its guards are made once; before each import they learn what verdicts cited
    since the one before. The first import reads what all verdicts cited (1.7 s for 10,000), so that no start does."""

    def __init__(self, state: AppState) -> None:
        service = self._service = state.service
        self._guards = FilterGuards(state.options.causes)
        self._diagnosis_guards = failures.diagnosis_guards(service.scanner, service.records)
        self._importing = threading.Lock()
        self._seen = 0  # the last verdict whose evidence the guards know

    def enter(self, body: bytes, kind: str | None, by: str) -> list[Imported]:
        """Enter the rules of a YAML body, and return what became of each; `Busy` while others are entered."""
        if not self._importing.acquire(blocking=False):
            raise Busy("the service", "rules are being imported already", "Try again later.")
        try:
            self._catch_up()
            file, rules = File("the body", lambda: body), self._service.rules
            return import_files([file], kind, self._guards, rules, by, time.time(), _MOST, self._diagnosis_guards)
        finally:
            self._importing.release()

    def _catch_up(self) -> None:
        """Tell the guards which lines verdicts cited since the last time."""
        while page := self._service.records.evidence_after(self._seen, _PAGE):
            self._guards.remember(line for _, evidence in page for line in quotes(evidence))
            self._seen = page[-1][0]
