"""No healthy node is convicted and no faulty one missed, whenever some world of the first round can pass."""

from itertools import combinations
from random import Random

import pytest

from eval.simulate_nodes import dlrover, failing, run, simulate
from logdoctor.nodes.board import NodeTestTerms
from tests.soak import SOAKING

ODD = Random(1)


def assert_exact(nodes: int, bad: frozenset[int]) -> None:
    outcome = run(nodes, NodeTestTerms(), failing(bad, None, ODD))
    if outcome.provable:
        assert (outcome.convicted, outcome.undecided) == (bad, frozenset()), (nodes, bad)
    else:
        assert (outcome.convicted, len(outcome.undecided)) == (frozenset(), nodes), (nodes, bad)


SIZES = range(3, 65) if SOAKING else [*range(3, 17), 33, 48]


@pytest.mark.more_in_soak
@pytest.mark.parametrize("turn", range(4))
def test_all_sets_of_one_and_two_faulty_nodes(turn: int) -> None:
    for nodes in SIZES[turn::4]:
        for count in (1, 2):
            for bad in combinations(range(nodes), count):
                assert_exact(nodes, frozenset(bad))


@pytest.mark.more_in_soak
@pytest.mark.parametrize("seed", range(4))
def test_random_sets_of_up_to_a_quarter_of_up_to_588_nodes(seed: int) -> None:
    random = Random(seed)
    for _ in range(150 if SOAKING else 40):
        nodes = random.randint(3, 588)
        assert_exact(nodes, frozenset(random.sample(range(nodes), random.randint(1, max(1, nodes // 4)))))


def test_most_nodes_may_be_faulty() -> None:
    for bad in combinations(range(8), 5):
        assert_exact(8, frozenset(bad))
    assert_exact(100, frozenset(range(2, 100)))  # one pair is left, which tests all others in turn


def test_the_other_scheme_convicts_a_healthy_node_where_ours_does_not() -> None:
    report = simulate(5, 1, 2000, seed=3)
    assert report.ours.exact == 1.0
    assert report.ours.healthy_convicted == report.ours.missed == report.ours.indeterminate == 0.0
    assert 0.2 < report.dlrover.healthy_convicted < 0.8


def test_the_other_scheme_is_exact_for_one_faulty_node_of_an_even_number() -> None:
    for nodes in (4, 8, 64):
        for bad in range(nodes):
            outcome = dlrover(nodes, failing(frozenset([bad]), None, ODD), 1, Random(bad))
            assert outcome.convicted == {bad}


def test_without_a_pair_that_passes_nothing_is_guessed() -> None:
    report = simulate(2, 1, 50)
    assert (report.ours.indeterminate, report.ours.healthy_convicted, report.provable) == (1.0, 0.0, 0.0)


def test_pairing_anew_finds_what_the_first_round_could_not() -> None:
    before, after = simulate(4, 2, 500, seed=1), simulate(4, 2, 500, seed=1, regroups=2)
    assert before.ours.indeterminate > 0.5
    assert after.ours.exact == 1.0
    three = simulate(3, 1, 100, seed=1, regroups=3)
    assert three.ours.exact == 1.0 and three.provable == 0.0


def test_repeats_find_faults_that_come_and_go() -> None:
    missed = [simulate(64, 2, 150, 0.3, repeats, seed=2).ours.missed for repeats in (1, 4, 16)]
    assert missed[0] > missed[1] > missed[2] and missed[2] < 0.05


def test_588_nodes_cost_little() -> None:
    import time

    begin = time.process_time()
    run(588, NodeTestTerms(), failing(frozenset(range(0, 588, 4)), None, ODD))
    assert time.process_time() - begin < 1.0  # 0.01 s on an idle machine; what must hold is that it grows no faster
