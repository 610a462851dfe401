"""How many workers of a trial a Ray cluster has room for."""

from typing import TYPE_CHECKING, Any

import pytest

from logdoctor.wiring.ray_cluster import RayUnusable
from logdoctor.wiring.ray_trials import RayPlace
from tests.trials.conftest import Trials, eval_set, trials

__all__ = ["trials"]  # a fixture
if TYPE_CHECKING:
    pass


class Asking:
    """A Ray whose nodes have these resources."""

    def __init__(self, *nodes: dict[str, float]) -> None:
        self._nodes = [{"Alive": True, "Resources": node} for node in nodes]
        self.util = self

    def nodes(self) -> list[dict[str, Any]]:
        return self._nodes

    def get_node_ip_address(self) -> str:
        return "10.0.0.1"


@pytest.mark.parametrize(
    ("gpus", "nodes", "workers"),
    [
        (1, [{"CPU": 8, "GPU": 8}, {"CPU": 8, "GPU": 4}], 12),
        (4, [{"CPU": 8, "GPU": 8}, {"CPU": 8, "GPU": 3}], 2),
        (0.5, [{"CPU": 8, "GPU": 2}, {"CPU": 8}], 4),
        (0, [{"CPU": 8, "GPU": 2}, {"CPU": 4}], 12),
    ],
)
def test_there_are_as_many_workers_as_nodes_have_room_for(
    trials: Trials, gpus: float, nodes: list[dict[str, float]], workers: int
) -> None:
    model = {"path": "checkpoint", "name": "tiny", "gpus": gpus}
    assert RayPlace(Asking(*nodes), trials.trial(eval_set("a"), model=model, workers=0), 0).workers == workers


def test_a_cluster_without_room_says_so(trials: Trials) -> None:
    model = {"path": "checkpoint", "name": "tiny", "gpus": 8}
    with pytest.raises(RayUnusable, match=r"has no node with 8 GPUs\. Add nodes, or correct `gpus`"):
        RayPlace(Asking({"CPU": 8, "GPU": 4}), trials.trial(eval_set("a"), model=model), 0)
