"""How nodes are written on pages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.nodes.slurm import expanded
from logdoctor.web.nodes import words as node_wording


@pytest.mark.parametrize(
    ("names", "written"),
    [
        ([f"gpu-{number:03}" for number in range(1, 513)], "gpu-[001-512]"),
        (["gpu-08", "gpu-09", "gpu-11"], "gpu-[08-09,11]"),
        (["gpu-9", "gpu-10", "gpu-11"], "gpu-9,gpu-[10-11]"),
        (["login", "ip-10-3-44-217", "ip-10-3-44-201"], "login,ip-10-3-44-[201,217]"),
        (["gpu-1"], "gpu-1"),
        ([], ""),
    ],
)
def test_nodes_are_written_as_schedulers_write_them(names: list[str], written: str) -> None:
    assert node_wording.ranges(names) == written


@given(st.lists(st.from_regex(r"[a-z]{1,3}-?[0-9]{0,4}", fullmatch=True), min_size=1, max_size=40, unique=True))
def test_what_is_written_stands_for_the_same_nodes(names: list[str]) -> None:
    assert sorted(expanded(node_wording.ranges(names))) == sorted(names)
