"""The table of seeded faults fits the code: each one can be put into the tree as it is."""

import ast

import pytest

from eval.seeded_faults import ROOT, Fault, faults

FAULTS = faults()
PLACES = (
    "logdoctor/checkpoint/",
    "logdoctor/compress/",
    "logdoctor/diagnose/",
    "logdoctor/nodes/policy.py",
    "logdoctor/job/recovery/deciding.py",
    "logdoctor/store/log/table.py",
    "logdoctor/store/log/shards.py",
)
"""What breaks there is not seen from outside until it has done harm."""


def test_every_fault_has_a_name_of_its_own_and_every_place_has_some() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == 40
    assert all(sum(fault.path.startswith(place) for fault in FAULTS) >= 5 for place in PLACES)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_a_change_of_one_line_that_compiles(fault: Fault) -> None:
    assert fault.path.startswith(PLACES)
    sound = (ROOT / fault.path).read_text(encoding="utf-8")
    changed = fault.applied(sound)  # fails unless the line stands there exactly once
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(sound))
    assert (ROOT / fault.near[-1]).is_dir()
