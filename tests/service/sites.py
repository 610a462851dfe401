"""A data folder with a cluster on paper, and the processes over it."""

import time
from pathlib import Path

from logdoctor.errors import LaunchError
from logdoctor.nodes.board import NodeTestTerms
from logdoctor.nodes.cordon.caps import Caps
from logdoctor.nodes.cordon.cordoning import Cordoning
from logdoctor.nodes.cordon.file import FileCordoner
from logdoctor.nodes.launching import Launcher, ProbeOptions
from logdoctor.nodes.policy import Modes
from logdoctor.nodes.slurm import expanded
from logdoctor.service.acting import Actor, Means
from logdoctor.service.testing import Bench
from logdoctor.store.jobs.records import JobFacts, Records, StoredVerdict
from logdoctor.store.nodes.records import NodeRecords, StoredTest
from logdoctor.types import DecidedBy, Progress, Suspect, Verdict
from logdoctor.types.nodes import Node
from tests import waiting
from tests.databases import url_in
from tests.nodes.clusters import Ends, PaperLauncher, cluster, ending
from tests.service.services import Clock, turned
from tests.verdicts import ecc

NODES = cluster(8)
AUTO = Modes(test="auto", cordon="auto")
VERDICT = ecc(
    suspects=(Suspect("n3", None, None, "its log says so"),),
    decided_by=DecidedBy("rule", "r"),
    fingerprint="f",
    progress=Progress(step=100),
    nodes=tuple(node.name for node in NODES),
)


class Site:
    """A data folder with a cluster on paper; `actor` begins a process over it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cordons = folder, folder / "cordoned"
        self.records = Records(url_in(folder / "records"))
        self.nodes = NodeRecords(self.records.database)
        self.launcher = PaperLauncher(NODES, ending())
        self.clock = Clock()
        self._actors: list[Actor] = []

    def actor(self, modes: Modes = AUTO, taking_up: bool = True, launcher: str = "paper", share: float = 0.5) -> Actor:
        cordoner = FileCordoner(self.cordons, lambda: [node.name for node in NODES])
        means = Means(
            Bench(self._launcher, lambda nodes, _: list(nodes), NodeTestTerms(), ProbeOptions()),
            launcher,
            Cordoning(self.nodes, cordoner, "logdoctor", Caps(share)),
            cordoner.nodes,
            expanded,
            modes,
        )
        actor = Actor(means, self.records, self.nodes, self.folder, taking_up, clock=self.clock)
        actor.start()
        self._actors.append(actor)
        return actor

    def cluster(self, end: Ends, hanging: tuple[str, ...] = (), nodes: list[Node] = NODES) -> PaperLauncher:
        """Another cluster from now on."""
        self.launcher = PaperLauncher(nodes, end, hanging)
        return self.launcher

    def verdict(self, nodelist: str | None, verdict: Verdict = VERDICT, placed: bool = True) -> StoredVerdict:
        """A final verdict on a job, of whose nodes its scheduler told these, or somebody claimed them."""
        now = time.time()
        job = f"job-{now}"
        self.records.put_job(job, JobFacts(nodelist=nodelist, placed=placed), now)
        stored = self.records.publish(job, 1, verdict, True, now)
        assert stored is not None
        return stored

    def close(self) -> None:
        for actor in self._actors:
            actor.stop()
        self.records.close()

    def _launcher(self, name: str) -> Launcher:
        if name != "paper":
            raise LaunchError(f"launcher {name}", "there is none", "Use paper.")
        return self.launcher


def over(site: Site, test: int) -> StoredTest:
    """A test that has ended."""
    kept = waiting.until(lambda: (one := site.nodes.test(test)) and one.state != "running" and one, f"end of {test}")
    assert kept
    return kept


def looked(actor: Actor) -> None:
    """Have policy look at all that was to be looked at, and wait until it has."""
    turned(actor._turns)
