from collections import Counter

import pytest

from eval.replay.table3 import FREQUENCIES, apportioned, turns
from logdoctor import taxonomy
from logdoctor.errors import InputError

KINDS = {reason: [f"{reason} {n}" for n in range(80)] for reason in FREQUENCIES}


def test_the_table_names_reasons_of_the_taxonomy_and_no_anomaly() -> None:
    assert set(FREQUENCIES) == set(taxonomy.REASONS) - {"Hang", "Loss Spike", "Unknown"}


def test_reasons_come_as_often_as_the_table_says() -> None:
    came = Counter(turn.kind.rsplit(" ", 1)[0] for turn in turns(2500, KINDS, 1))
    whole = sum(FREQUENCIES.values())
    assert sum(came.values()) == 2500
    assert all(abs(came[reason] - 2500 * count / whole) <= 1 for reason, count in FREQUENCIES.items())


def test_one_in_ten_is_of_a_new_kind_all_the_way_through() -> None:
    order = turns(2500, KINDS, 1)
    seen: set[str] = set()
    for turn in order:
        assert turn.new == (turn.kind not in seen)
        seen.add(turn.kind)
    parts = [sum(turn.new for turn in order[first : first + 500]) for first in range(0, 2500, 500)]
    assert sum(parts) == 250
    assert min(parts) >= 35


def test_the_same_seed_gives_the_same_order_and_another_one_another() -> None:
    assert turns(400, KINDS, 5) == turns(400, KINDS, 5) != turns(400, KINDS, 6)


def test_too_few_kinds_are_named() -> None:
    with pytest.raises(InputError, match="Type Error"):
        turns(2500, KINDS | {"Type Error": ["one"]}, 1)


def test_parts_add_up_when_each_gets_one_at_least() -> None:
    parts = apportioned(10, {"a": 1000, "b": 1, "c": 1}, least=1)
    assert parts == {"a": 8, "b": 1, "c": 1}
