"""What came of an approved action is read from the tests and cordons on record."""

import time
from typing import Any

import pytest

from logdoctor.service.outcomes import result_of
from logdoctor.store.nodes.records import StoredAction
from logdoctor.types.nodes import Action, Conclusion
from tests.service.sites import NODES, Site


def approved(site: Site, kind: Any, *nodes: str) -> StoredAction:
    stored = site.nodes.propose(Action(kind, nodes, "ask", "so", 1), "job", 1, 5.0)
    assert stored is not None
    return site.nodes.decide(stored.id, True, "u1", "", time.time())


def test_of_a_test(site: Site) -> None:
    action = approved(site, "test_nodes", "n1", "n2")
    assert result_of(action, site.nodes) is None
    other = site.nodes.begin_test("paper", NODES[:3], {"action": 99}, "u1", None, 5.0)
    assert result_of(action, site.nodes) is None
    test = site.nodes.begin_test("paper", NODES[:3], {"action": action.id}, "u1", None, 5.0)
    assert result_of(action, site.nodes) == "open"
    site.nodes.finish_test(test, Conclusion(()), 6.0)
    site.nodes.abort_test(other, "", 6.0)
    assert result_of(action, site.nodes) == "done"


@pytest.mark.parametrize(("steps", "came"), [((), "open"), (("standing",), "done"), (("failed",), "failed")])
def test_of_a_cordon(site: Site, steps: tuple[str, ...], came: str) -> None:
    before = site.nodes.want_cordon("n1", "file", "u1", time.time() - 60, "another one")
    site.nodes.step_cordon(before.id, "failed", "u1", "", 5.0)
    action = approved(site, "cordon", "n1")
    assert result_of(action, site.nodes) is None
    cordon = site.nodes.want_cordon("n1", "file", "u1", time.time(), "so")
    for step in steps:
        site.nodes.step_cordon(cordon.id, step, "u1", "", 5.0)
    assert result_of(action, site.nodes) == came


def test_of_advice(site: Site) -> None:
    assert result_of(approved(site, "reboot", "n1"), site.nodes) == "done"
