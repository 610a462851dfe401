"""Lists of nodes: the order, the filters, and pages that follow each other while the list changes."""

import time
from pathlib import Path

import pytest

from logdoctor.errors import CursorError
from logdoctor.store.nodes.history import MONTH
from logdoctor.store.nodes.places import NodePlace, PlaceKey, WantedNodes, listed, place_after
from logdoctor.types.nodes import Action
from tests.recorded_nodes import NODES, kept_test, opened

OFTEN = NodePlace("b-often", 9, 1, 50.0, 2, 0, "healthy", "", None)
LATELY = NodePlace("a-lately", 3, 3, 90.0, 0, 0, "", "dry-run", 7)
FAULTY = NodePlace("d-faulty", 0, 0, 0.0, 0, 0, "faulty", "slurm", None)
QUIET = NodePlace("C-quiet", 0, 0, 0.0, 0, 0, "healthy", "", None)
ALL = (QUIET, LATELY, FAULTY, OFTEN)


def names(wanted: WantedNodes) -> list[str]:
    return [place.node for place in listed(ALL, wanted, None, 10).items]


def test_the_order_is_what_was_asked_for() -> None:
    assert names(WantedNodes()) == ["b-often", "a-lately", "C-quiet", "d-faulty"]
    assert names(WantedNodes(order="recent")) == ["a-lately", "b-often", "d-faulty", "C-quiet"]
    assert names(WantedNodes(order="name")) == ["C-quiet", "a-lately", "b-often", "d-faulty"]


def test_all_filters_must_hold_and_each_is_counted_without_itself() -> None:
    assert names(WantedNodes(text="c-Q")) == ["C-quiet"] and names(WantedNodes(testing=True)) == ["a-lately"]
    assert names(WantedNodes(standing="untested", service="dry-run")) == ["a-lately"]
    assert names(WantedNodes(standing="faulty", service="in-service")) == []
    counts = listed(ALL, WantedNodes(standing="healthy", service="in-service"), None, 1).counts
    assert counts == {"standing": {"healthy": 2}, "service": {"in-service": 2}}


def test_a_page_goes_on_behind_its_last_node_whatever_came_meanwhile() -> None:
    first = listed(ALL, WantedNodes(), None, 2)
    worse = NodePlace("new", 99, 99, 99.0, 0, 0, "", "", None)
    rest = listed((*ALL, worse), WantedNodes(), place_after(first.next), 2)
    assert [place.node for place in (*first.items, *rest.items)] == ["b-often", "a-lately", "C-quiet", "d-faulty"]
    assert rest.next is None


@pytest.mark.parametrize("name", ["gpu_1", "odd name", "_", "\u00e9\u202e", "0_0_0_0_0"])
def test_any_name_can_end_a_page(name: str) -> None:
    places = [NodePlace(name, 1, 0, 0.1, 0, 0, "", "", None), NodePlace("\U0010ffff", 0, 0, 0.0, 0, 0, "", "", None)]
    found = listed(places, WantedNodes(), None, 1)
    assert place_after(found.next) == PlaceKey(0, -1, 0, -0.1, name)


@pytest.mark.parametrize("cursor", ["", "x", "1_2_3", "0_0_0_nan_a", "0_0_0_inf_a", "a_0_0_0_a", "9" * 9999])
def test_a_cursor_that_no_page_gave_is_refused(cursor: str) -> None:
    with pytest.raises(CursorError):
        place_after(cursor)


@pytest.mark.usefixtures("each_database")
def test_what_ages_is_counted_apart(tmp_path: Path) -> None:
    records = opened(tmp_path)
    kept_test(records, at=time.time() - MONTH - 3600)
    kept_test(records, at=time.time())
    first = records.node_page(limit=1).items[0]
    assert (first.node, first.faulty, first.recent_faulty, first.failures) == ("gpu-02", 2, 1, 0)
    assert records.suspicions("gpu-02") == (0, 0)


@pytest.mark.usefixtures("each_database")
def test_a_node_is_listed_while_it_is_tested_and_after_it_was_out(tmp_path: Path) -> None:
    records = opened(tmp_path)
    test = kept_test(records, None, 0)
    assert {one.node: one.test for one in records.node_page().items} == {node.name: test for node in NODES}
    records.abort_test(test, "stopped", 1.0)
    assert records.node_page().items == []
    cordon = records.want_cordon("gpu-7", "dry-run", "ops", 1.0, "x")
    records.step_cordon(cordon.id, "standing", "ops", "", 1.0)
    records.want_cordon("gpu-7", "slurm", "ops", 2.0, "for real")
    records.want_cordon("gpu-8", "dry-run", "ops", 2.0, "rehearsed")
    held = {one.node: one.cordon.how for one in records.node_page().items if one.cordon}
    assert held == {"gpu-7": "slurm", "gpu-8": "dry-run"}, "a real cordon is not hidden by a rehearsed one"
    assert records.made_by("dry-run", [1, 2, 3]) == {1, 3}
    assert records.open_cordons("slurm", 2.0).nodes == {"gpu-7"}
    records.step_cordon(3, "standing", "ops", "", 3.0)
    records.step_cordon(3, "undone", "ops", "", 3.0)
    assert [one.cordon for one in records.node_page(WantedNodes(text="gpu-8")).items] == [None]


@pytest.mark.usefixtures("each_database")
def test_actions_are_found_by_their_nodes(tmp_path: Path) -> None:
    records = opened(tmp_path)
    for place, nodes in enumerate((("gpu-1", "gpu-12"), ("gpu-12",), ("gpu_12",), ("GPU-12",))):
        records.propose(Action("reboot", nodes, "ask", "so", None, place + 1), None, None, 1.0)
    assert [one.id for one in records.actions("waiting", node="gpu-12").items] == [2, 1]
    assert [one.id for one in records.actions(node="gpu-1").items] == [1]
    assert [one.id for one in records.actions(node="GPU-12").items] == [4]
    assert [one.id for one in records.actions(node="gpu_12").items] == [3], "no sign in a name stands for others"
    records.decide(2, False, "ops", "", 2.0)
    assert records.counted() == {"waiting": 3, "refused": 1} and records.waiting() == 3


@pytest.mark.usefixtures("each_database")
def test_some_worlds_of_a_test_are_read_without_the_rest(tmp_path: Path) -> None:
    records = opened(tmp_path)
    test = kept_test(records)
    assert [one.world.number for one in records.worlds(test, (4, 1, 99))] == [1, 4]
