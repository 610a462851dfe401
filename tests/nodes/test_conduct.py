"""A test of nodes from its first round to its conclusion."""

import asyncio

import pytest

from logdoctor.errors import InputError, LaunchError
from logdoctor.nodes.board import Board, NodeTestTerms
from logdoctor.nodes.conduct import Conducting
from logdoctor.nodes.launching import LaunchTask, ProbeAnswer, ProbeOptions
from logdoctor.types.nodes import Conclusion, Result, World
from tests import waiting
from tests.nodes.clusters import PaperLauncher, cluster, concluded, ending

NODES = cluster(9, groups=3)
END = ending(bad=["n4"], nodes=NODES, slow={"n7": 5.0}, down=["n2"])


def conducted(launcher: PaperLauncher, earlier: dict[int, Result] | None = None) -> tuple[Conclusion, list[Result]]:
    kept: list[Result] = []
    conducting = Conducting("t1", launcher, Board(NODES, NodeTestTerms()), ProbeOptions(), kept.append, earlier=earlier)
    return asyncio.run(conducting.run()), kept


def test_it_concludes_what_the_results_prove() -> None:
    launcher = PaperLauncher(NODES, END)
    found, kept = conducted(launcher)
    expected, _ = concluded(NODES, END)
    assert [(one.node, one.standing) for one in found.findings] == [(o.node, o.standing) for o in expected.findings]
    assert (found.named("faulty"), found.named("slow"), found.named("indeterminate")) == (("n4",), ("n7",), ("n2",))
    assert [result.world for result in kept] == launcher.asked and launcher.tests == {"t1"}


@pytest.mark.parametrize("known", range(0, 14, 3))
def test_what_was_kept_is_not_launched_again(known: int) -> None:
    whole, kept = conducted(PaperLauncher(NODES, END))
    earlier = {result.world.number: result for result in kept[:known]}
    launcher = PaperLauncher(NODES, END)
    again, added = conducted(launcher, earlier)
    assert again == whole
    assert {world.number for world in launcher.asked} == {result.world.number for result in kept} - earlier.keys()
    assert len(added) == len(kept) - len(earlier)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logdoctor.nodes.conduct._PAUSES", (0.01, 0.01, 0.01))


def test_a_launcher_that_comes_back_is_waited_for() -> None:
    class Restarting(PaperLauncher):
        async def run(self, task: LaunchTask) -> list[ProbeAnswer]:
            if len(self.asked) < 5:
                self.asked.append(task.world)
                raise LaunchError("srun", "slurmctld does not answer", "Look at it.")
            return await super().run(task)

    found, _ = conducted(Restarting(NODES, END))
    assert found.named("faulty") == ("n4",)


def test_a_test_on_record_of_another_plan_is_not_mixed_up() -> None:
    _, kept = conducted(PaperLauncher(NODES, END))
    other = {1: Result(World(1, 1, ("n0", "n8"), "another plan"), "passed")}
    with pytest.raises(InputError, match="another plan"):
        conducted(PaperLauncher(NODES, END), other)
    assert kept


def test_a_launcher_that_fails_convicts_nobody() -> None:
    class Broken(PaperLauncher):
        async def run(self, task: LaunchTask) -> list[ProbeAnswer]:
            raise LaunchError("srun", "no such partition", "Name another.")

    found, kept = conducted(Broken(NODES, END))
    assert len(found.named("indeterminate")) == 9 and all(result.ended == "void" for result in kept)
    assert "no such partition" in found.findings[0].why


def test_ports_of_a_round_are_different() -> None:
    ports: dict[int, list[int]] = {}

    class Noting(PaperLauncher):
        async def run(self, task: LaunchTask) -> list[ProbeAnswer]:
            ports.setdefault(task.world.round, []).append(task.port)
            return await super().run(task)

    conducted(Noting(NODES, END))
    assert all(len(used) == len(set(used)) for used in ports.values())


def test_a_cancelled_test_ends_its_worlds() -> None:
    launcher = PaperLauncher(NODES, END, hanging=["n0", "n8"])

    async def run() -> None:
        conducting = Conducting("t1", launcher, Board(NODES, NodeTestTerms()), ProbeOptions(), lambda _: None)
        running = asyncio.create_task(conducting.run())
        await asyncio.to_thread(waiting.until, lambda: len(launcher.asked) >= 3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(run())
    assert launcher.ended == 2


def test_no_round_begins_when_the_time_is_up() -> None:
    board = Board(NODES, NodeTestTerms())
    found = asyncio.run(
        Conducting("t1", PaperLauncher(NODES, END), board, ProbeOptions(), lambda _: None, seconds=0).run()
    )
    assert found.rounds == 0 and len(found.named("indeterminate")) == 9
