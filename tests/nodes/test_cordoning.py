"""Cordons are on record before they are made, stay within caps, undo only ours, and survive a kill at any step."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logdoctor.errors import CordonError, CordonRefused, InputError
from logdoctor.nodes.cordon.caps import Caps
from logdoctor.nodes.cordon.cordoner import Cordoner
from logdoctor.nodes.cordon.cordoning import BY, GRACE, Cordoning
from logdoctor.nodes.cordon.dry_run import DryRun
from logdoctor.nodes.cordon.file import FileCordoner
from logdoctor.store.jobs.records import Records
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.types.nodes import Mark, NodeState, PastCordon

FLEET = [f"gpu-{number}" for number in range(40)]
WIDE = Caps(0.5, 20, 20)


@pytest.fixture
def records(tmp_path: Path) -> Iterator[NodeRecords]:
    opened = Records(database(tmp_path))
    yield NodeRecords(opened.database)
    opened.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cordoned"


@pytest.fixture
def cordoning(records: NodeRecords, path: Path) -> Cordoning:
    return over(records, FileCordoner(path, fleet))


def database(folder: Path) -> str:
    return f"sqlite:///{folder}/records.sqlite"


def fleet() -> list[str]:
    return FLEET


def over(records: NodeRecords, cordoner: Cordoner, caps: Caps = WIDE) -> Cordoning:
    return Cordoning(records, cordoner, "logdoctor", caps)


def cordon(cordoning: Cordoning, node: str, at: float = 10.0) -> PastCordon:
    return cordoning.cordon(node, "user-17", "wrong data", 7, None, at)


def steps(records: NodeRecords, node: str) -> list[tuple[str, str]]:
    return [(event.step, event.by) for event in reversed(records.audit(node=node, limit=500).items)]


def test_a_cordon_is_made_and_undone(cordoning: Cordoning, records: NodeRecords, path: Path) -> None:
    made = cordon(cordoning, "gpu-1")
    assert (made.state, made.node, made.how, made.by, made.verdict) == ("standing", "gpu-1", "file", "user-17", 7)
    assert path.read_text() == f"gpu-1  # logdoctor cordon {made.id} verdict 7: wrong data\n"
    undone = cordoning.uncordon("gpu-1", "user-18", "repaired", 20.0)
    assert (undone.id, undone.state, undone.why) == (made.id, "undone", "repaired") and path.read_text() == ""
    assert steps(records, "gpu-1") == [
        ("wanted", "user-17"),
        ("standing", "user-17"),
        ("undo wanted", "user-18"),
        ("undone", "user-18"),
    ]
    assert cordon(cordoning, "gpu-1", 30.0).id > made.id


@pytest.mark.parametrize("reason", ["a\nb\0c", "x" * 5000, "\u7814\ud800", 'it\'s "so" `x` \\', "", "# gpu-2"])
def test_any_reason_can_be_undone(cordoning: Cordoning, path: Path, reason: str) -> None:
    cordoning.cordon("gpu-1", "user-17", reason, None, None, 10.0)
    assert path.read_bytes().count(b"\n") == 1 and len(path.read_bytes()) < 220
    assert cordoning.uncordon("gpu-1", "user-17", "", 11.0).state == "undone"


def test_what_others_cordoned_is_left_alone(cordoning: Cordoning, records: NodeRecords, path: Path) -> None:
    path.write_text("gpu-1 # fan\ngpu-2 # other cordon 1: x\ngpu-3 # logdoctor cordon 99: of other records\n")
    before = path.read_bytes()
    for node in ("gpu-1", "gpu-2", "gpu-3"):
        with pytest.raises(CordonRefused, match="by others"):
            cordon(cordoning, node)
        with pytest.raises(CordonRefused, match="no cordon by logdoctor"):
            cordoning.uncordon(node, "user-17", "", 11.0)
    assert path.read_bytes() == before
    assert {one.state for one in records.cordons()} == {"refused"} and "fan" in records.cordons(node="gpu-1")[0].why


def test_a_cordon_that_others_took_over_is_theirs(cordoning: Cordoning, records: NodeRecords, path: Path) -> None:
    made = cordon(cordoning, "gpu-1")
    path.write_text(path.read_text().replace("wrong data", "wrong data; waits for a fan"))
    with pytest.raises(CordonRefused, match="by others"):
        cordoning.uncordon("gpu-1", "user-18", "repaired", 20.0)
    assert "waits for a fan" in path.read_text()
    assert steps(records, "gpu-1")[-2:] == [("undo wanted", "user-18"), ("undo refused", BY)]
    (settled,) = cordoning.reconcile(30.0)
    assert (settled.id, settled.state) == (made.id, "undone") and "waits for a fan" in settled.why


@pytest.mark.parametrize("node", ["gpu-1;reboot", "$(x)", "", "a b", "gpu-1\n"])
def test_hostile_names_touch_nothing(cordoning: Cordoning, records: NodeRecords, path: Path, node: str) -> None:
    with pytest.raises(InputError):
        cordon(cordoning, node)
    with pytest.raises(InputError):
        cordoning.uncordon(node, "user-17", "", 11.0)
    with pytest.raises(CordonError, match=r"is in no list of nodes.*LOGDOCTOR_FLEET"):
        cordon(cordoning, "gpu-99")
    assert records.cordons() == [] and not path.exists()


def test_nobody_cordons_nothing(cordoning: Cordoning, records: NodeRecords, path: Path) -> None:
    with pytest.raises(CordonRefused, match="nobody"):
        cordoning.cordon("gpu-1", " ", "why", None, None, 1.0)
    with pytest.raises(CordonError, match="the owner"):
        Cordoning(records, FileCordoner(path, fleet), "log doctor", WIDE)
    assert records.cordons() == [] and not path.exists()


# caps


def test_each_cap_ends_it(records: NodeRecords, path: Path) -> None:
    path.write_text("".join(f"gpu-{number} # theirs\n" for number in range(30, 38)))
    file = FileCordoner(path, fleet)
    for caps, told in (
        (Caps(0.25, 9, 9), "0.25 of 40 nodes .at most 10.: 10 cordoned now"),
        (Caps(0.9, 3, 9), "3 at once"),
        (Caps(0.9, 9, 4), "4 an hour"),
    ):
        cordoning = over(records, file, caps)
        made: list[str] = []
        with pytest.raises(CordonRefused, match=told):
            for node in FLEET[len(records.cordons()) :]:
                cordon(cordoning, node)
                made.append(node)
        assert len(path.read_text().splitlines()) - 8 == len(records.cordons(state="standing"))
    assert [len(records.cordons(state=state)) for state in ("standing", "refused")] == [4, 3]
    assert cordon(over(records, file, Caps(0.9, 9, 4)), "gpu-20", 10.0 + 3601).state == "standing"


def test_undone_cordons_count_for_the_hour(records: NodeRecords, path: Path) -> None:
    cordoning = over(records, FileCordoner(path, fleet), Caps(0.9, 9, 2))
    for at in (1.0, 2.0):
        cordon(cordoning, "gpu-1", at)
        cordoning.uncordon("gpu-1", "user-17", "", at)
    with pytest.raises(CordonRefused, match="2 an hour"):
        cordon(cordoning, "gpu-1", 3.0)


def test_a_dry_run_is_a_rehearsal_with_caps_of_its_own(records: NodeRecords, path: Path) -> None:
    file = FileCordoner(path, fleet)
    dry = over(records, DryRun(file), Caps(0.9, 2, 9))
    made = cordon(dry, "gpu-1")
    assert (made.how, made.state) == ("dry-run", "standing") and not path.exists()
    cordon(dry, "gpu-2")
    with pytest.raises(CordonRefused, match="2 at once"):
        cordon(dry, "gpu-3")
    assert dry.reconcile(10_000.0) == []
    assert cordon(over(records, file, Caps(0.9, 1, 9)), "gpu-1").how == "file"
    assert dry.uncordon("gpu-2", "user-17", "", 11.0).state == "undone" and "gpu-1" in path.read_text()


def test_what_is_being_made_is_left_to_its_maker(records: NodeRecords, cordoning: Cordoning) -> None:
    wanted = records.want_cordon("gpu-1", "file", "user-17", 1000.0, "x")
    assert cordoning.reconcile(1000.0 + GRACE - 1) == [] and records.cordon(wanted.id) == wanted
    (settled,) = cordoning.reconcile(1000.0 + GRACE)
    assert (settled.state, settled.changed) == ("failed", 1000.0 + GRACE)


class Odd(FileCordoner):
    """A file cordoner that fails as told: before it has done it, after that, and then also when it is looked at."""

    def __init__(self, path: Path, fails: str) -> None:
        super().__init__(path, fleet)
        self.fails = fails

    def cordon(self, name: str, mark: Mark) -> None:
        if self.fails != "before":
            super().cordon(name, mark)
        raise CordonError(f"node {name}", "timed out", "Wait.")

    def uncordon(self, name: str, mark: Mark) -> None:
        raise CordonError(f"node {name}", "timed out", "Wait.")

    def node(self, name: str) -> NodeState | None:
        if self.fails == "blind":
            raise CordonError("the cluster", "is away", "Wait.")
        return super().node(name)


@pytest.mark.parametrize(
    ("fails", "state", "after"),
    [("before", "failed", "failed"), ("after", "standing", "standing"), ("blind", "wanted", "standing")],
)
def test_a_deed_that_fails_is_looked_at(records: NodeRecords, path: Path, fails: str, state: str, after: str) -> None:
    cordoning = over(records, Odd(path, fails))
    if fails == "after":
        assert cordon(cordoning, "gpu-1").state == "standing"
    else:
        with pytest.raises(CordonError, match="timed out"):
            cordon(cordoning, "gpu-1")
    (one,) = records.cordons()
    assert one.state == state
    cordoning.reconcile(10.0 + GRACE)
    assert records.cordons()[0].state == after


@pytest.mark.parametrize(("does", "state"), [(True, "standing"), (False, "failed")])
def test_a_deed_that_fails_oddly_is_looked_at(records: NodeRecords, path: Path, does: bool, state: str) -> None:
    class Odder(FileCordoner):
        def cordon(self, name: str, mark: Mark) -> None:
            if does:
                super().cordon(name, mark)
            raise UnicodeDecodeError("utf-8", b"x", 0, 1, "odd")

    cordoning = over(records, Odder(path, fleet))
    if does:
        assert cordon(cordoning, "gpu-1").state == "standing"
    else:
        with pytest.raises(UnicodeDecodeError):
            cordon(cordoning, "gpu-1")
    assert [one.state for one in records.cordons()] == [state]


def test_another_owner_in_the_settings_orphans_no_cordon(records: NodeRecords, path: Path) -> None:
    made = cordon(over(records, FileCordoner(path, fleet)), "gpu-1")
    later = Cordoning(records, FileCordoner(path, fleet), "logdoctor-east", Caps(0.5, 1, 20))
    assert made.owner == "logdoctor" and later.reconcile(20.0) == []
    with pytest.raises(CordonRefused, match="AT_ONCE"):
        cordon(later, "gpu-2", 21.0)
    assert later.uncordon("gpu-1", "user-18", "repaired", 22.0).state == "undone" and path.read_text() == ""
    assert cordon(later, "gpu-2", 23.0).owner == "logdoctor-east" and "logdoctor-east cordon" in path.read_text()


def test_what_cannot_be_undone_still_stands(records: NodeRecords, cordoning: Cordoning, path: Path) -> None:
    made = cordon(cordoning, "gpu-1")
    with pytest.raises(CordonError, match="timed out"):
        over(records, Odd(path, "")).uncordon("gpu-1", "user-18", "repaired", 20.0)
    assert records.cordons(state="standing") == [made]
    assert steps(records, "gpu-1")[-2:] == [("undo wanted", "user-18"), ("undo failed", BY)]
    assert cordoning.uncordon("gpu-1", "user-18", "repaired", 21.0).state == "undone"


def test_a_deed_that_comes_late_is_found(records: NodeRecords, cordoning: Cordoning, path: Path) -> None:
    wanted = records.want_cordon("gpu-1", "file", "user-17", 10.0, "x", 7, owner="logdoctor")
    assert cordoning.reconcile(10.0 + GRACE)[0].state == "failed"
    FileCordoner(path, fleet).cordon("gpu-1", Mark("logdoctor", wanted.id, 7, "x"))
    (settled,) = cordoning.reconcile(20.0 + GRACE)
    assert (settled.id, settled.state) == (wanted.id, "standing") and cordoning.reconcile(30.0 + GRACE) == []
    assert cordoning.uncordon("gpu-1", "user-17", "", 40.0 + GRACE).state == "undone"


def test_a_settled_cordon_is_not_settled_twice(records: NodeRecords, path: Path) -> None:
    """Another process settles while this one is at work: each ends in the state that is so."""

    class Overtaken(FileCordoner):
        def cordon(self, name: str, mark: Mark) -> None:
            super().cordon(name, mark)
            other.reconcile(10.0, grace=0.0)

        def uncordon(self, name: str, mark: Mark) -> None:
            super().uncordon(name, mark)
            other.reconcile(20.0, grace=0.0)

    other = over(records, FileCordoner(path, fleet))
    cordoning = over(records, Overtaken(path, fleet))
    assert cordon(cordoning, "gpu-1").state == "standing"
    assert cordoning.uncordon("gpu-1", "user-18", "", 20.0).state == "undone"
    assert [step for step, _ in steps(records, "gpu-1")] == ["wanted", "standing", "undo wanted", "undone"]


def test_a_fleet_that_cannot_be_looked_at_is_not_touched(records: NodeRecords, path: Path) -> None:
    class Away(FileCordoner):
        def nodes(self) -> list[Any]:
            raise CordonError("the cluster", "is away", "Wait.")

    cordoning = over(records, Away(path, fleet))
    with pytest.raises(CordonError, match="away"):
        cordon(cordoning, "gpu-1")
    assert records.cordons() == [] and not path.exists()
