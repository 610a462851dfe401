"""`logdoctor batch --ask`: past cases and the model, where the rules leave the cause open."""

import time
from pathlib import Path

import msgspec

from logdoctor import wiring
from logdoctor.cli.exits import complain
from logdoctor.errors import LogdoctorError
from logdoctor.failure_agent.once import Said
from logdoctor.pipeline.asking import Asking
from logdoctor.pipeline.batch.answers import Lines
from logdoctor.pipeline.batch.judging import Judge, fetched, reported
from logdoctor.pipeline.batch.rows import Row, diagnosed
from logdoctor.pipeline.batch.sources import Fetch, Source
from logdoctor.settings import Settings
from logdoctor.types import Verdict
from logdoctor.wiring import failures


class RowAsking:
    """Asks about rows, each as a job of its own. The model is asked once about the same failure, even when the run is
    resumed: answers are kept beside `parts`."""

    def __init__(self, settings: Settings, judge: Judge, fetch: Fetch, parts: Path) -> None:
        self._judge, self._limits, self._fetch = judge, wiring.limits(settings), fetch
        self.digest = failures.ladder_digest(settings)
        """Digest of what the answers depend on, apart from the rules."""
        memory = Lines(parts / f"asked-{self.digest}-{judge.digest}", tuple[str, Said])
        climbing = failures.rungs(settings, judge.scanner(""), memory)
        self._ladder, self._taught = climbing.ladder, climbing.teacher.alive()
        self._begun, self._number = time.time_ns(), 0
        self._complaints: set[str] = set()

    def is_open(self, row: Row) -> bool:
        """Return whether past cases or the model may know better than the rules."""
        if row.outcome != "failed" or row.verdict is None:
            return False
        verdict = msgspec.json.decode(row.verdict, type=Verdict)
        return self._ladder.may_climb(verdict)

    def answer(self, source: Source, row: Row) -> Row | None:
        """Return the row as past cases or the model decide it. None on an error; each error is printed once."""
        self._number += 1
        job = f"batch-{self._begun}-{self._number}"
        asking = Asking(self._judge.scanner(row.kind), self._limits, self._taught, self._ladder, job)
        try:
            with fetched(source, self._fetch, self._judge.folder) as attempt:
                return diagnosed(asking.ask(asking.by_rule(attempt, reported(source))), row)
        except LogdoctorError as error:
            if str(error) not in self._complaints:
                self._complaints.add(str(error))
                complain(error)
            return None
