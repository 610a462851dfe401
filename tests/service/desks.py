"""A desk at which incidents are told: a database, a clock that tests set, receivers, and notifiers over them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from logdoctor.service.delivering import Delivery, NotifyTerms
from logdoctor.service.notify.sending import Target, Way
from logdoctor.service.notifying import Notifier
from logdoctor.store.incidents.notices import Notices
from logdoctor.store.incidents.table import Incidents
from logdoctor.store.jobs.records import Records, StoredVerdict
from tests.databases import url_in
from tests.notify.receivers import SECRET, Got, Receiver, receiving
from tests.notify.stories import AT, VERDICT

TERMS = NotifyTerms(gather=0.0)
NOON = AT - AT % 86_400 + 12 * 3600.0


class Desk:
    """A database, a clock, receivers, and notifiers over them, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.url = url_in(folder / "records")
        self.records = Records(self.url)
        self.incidents, self.notices = Incidents(self.records.database), Notices(self.records.database)
        self.now = NOON
        self.receivers: dict[str, Receiver] = {}
        self.way = Way(300.0)
        self.notifier = self.another()
        self._started: list[Notifier] = []

    def another(self, terms: NotifyTerms = TERMS, start: bool = False) -> Notifier:
        """A new process, as far as notifications go."""
        targets = [Target(name, "webhook", one.url + "/hook", (SECRET,)) for name, one in self.receivers.items()]
        self.notifier = Notifier(targets, self.notices, terms, self.way, lambda: self.now)
        self.notifier.collect()  # what was before is no news
        if start:
            self.notifier.start()
            self._started.append(self.notifier)
        return self.notifier

    def delivery(self, name: str = "ops") -> Delivery:
        return self.notifier._deliveries[name]

    def turn(self, name: str = "ops") -> None:
        """What the threads do once."""
        self.notifier.collect()
        self.delivery(name).turn()

    def fail(self, job: str, final: bool = True, recovery: str = "isolate_and_restart") -> StoredVerdict:
        verdict = msgspec.structs.replace(VERDICT, fingerprint=f"of {job}", recovery=recovery)
        stored = self.records.publish(job, 1, verdict, final, self.now)
        assert stored is not None
        return stored

    def resolve(self, job: str, by: str = "u1") -> None:
        incident = self.incidents.of(job, 1)
        assert incident is not None
        self.incidents.step(incident, "resolve", by, "node replaced", self.now, None)

    def got(self, name: str = "ops") -> list[str]:
        """What a receiver was told, in short."""
        found = []
        for one in self.receivers[name].got:
            data, kind = one.json["data"], one.json["type"]
            found.append(f"{kind} {data['opened'] + data['resolved'] if 'numbers' in data else data.get('job', '')}")
        return found

    def got_of(self, kind: str) -> list[object]:
        """What ops was told in messages of a kind: jobs, or how many were opened."""
        told = [one.json["data"] for one in self.posts if kind in one.json.get("type", "")]
        return [data["opened"] if "numbers" in data else data.get("job") for data in told]

    def states(self) -> list[str]:
        return [one.state for one in reversed(self.notices.notices(limit=100).items)]

    def close(self) -> None:
        for one in self.receivers.values():
            one.close()
        for notifier in self._started:
            notifier.stop()
        self.records.close()

    @property
    def posts(self) -> list[Got]:
        """What ops got."""
        return self.receivers["ops"].got


@contextmanager
def desk_in(folder: Path) -> Iterator[Desk]:
    """A desk with the receivers ops and research, until the block ends."""
    desk = Desk(folder)
    with receiving() as ops, receiving() as research:
        desk.receivers = {"ops": ops, "research": research}
        desk.another()
        yield desk
        desk.close()
