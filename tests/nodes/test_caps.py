"""Caps hold to the node: a share of the fleet, one of several nodes at least, a number at once, a number an hour."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import CordonRefused
from logdoctor.nodes.cordon.caps import Caps, check

WIDE = Caps(1.0, 10**6, 10**6)


def allowed(caps: Caps, fleet: int, cordoned: int = 0, ours: int = 0, hour: int = 0) -> bool:
    try:
        check(caps, fleet, cordoned, ours, hour)
    except CordonRefused:
        return False
    return True


@pytest.mark.parametrize(
    ("share", "fleet", "most"),
    [
        (0.05, 1, 0),
        (0.05, 2, 1),
        (0.05, 19, 1),
        (0.05, 20, 1),
        (0.05, 39, 1),
        (0.05, 588, 29),
        (0.29, 100, 29),
        (0.1, 30, 3),
        (1.0, 3, 3),
        (0, 9, 0),
    ],
)
def test_a_share_is_rounded_down_by_its_digits(share: float, fleet: int, most: int) -> None:
    caps = WIDE._replace(share=share)
    assert [allowed(caps, fleet, cordoned) for cordoned in range(fleet + 1)].count(True) == most
    assert not allowed(caps, fleet, most)


@pytest.mark.parametrize("share", [math.nan, math.inf, -0.1, 1.1])
def test_a_share_that_is_none_allows_nothing(share: float) -> None:
    assert not allowed(WIDE._replace(share=share), 100)


@pytest.mark.parametrize(
    ("caps", "figures", "told"),
    [
        (Caps(), (19, 1, 0, 0), "0.05 of 19 nodes (at most 1): 1 cordoned now. .*LOGDOCTOR_CORDON_SHARE"),
        (Caps(), (100, 5, 0, 0), "0.05 of 100 nodes (at most 5): 5 cordoned now. .*LOGDOCTOR_CORDON_SHARE"),
        (Caps(), (100, 4, 4, 0), "4 at once (at most 4): 4 cordoned by logdoctor now. .*LOGDOCTOR_CORDON_AT_ONCE"),
        (Caps(), (100, 2, 2, 2), "2 an hour .*: 2 cordoned by logdoctor in the last hour. .*LOGDOCTOR_CORDON_PER_HOUR"),
    ],
)
def test_a_refusal_names_cap_figures_and_setting(caps: Caps, figures: tuple[int, ...], told: str) -> None:
    with pytest.raises(CordonRefused, match=told.replace("(", r"\(").replace(")", r"\)")):
        check(caps, *figures)


@given(
    st.builds(Caps, st.floats(0, 1), st.integers(0, 20), st.integers(0, 20)),
    st.integers(0, 600),
    *[st.integers(0, 20)] * 3,
)
def test_no_cap_is_ever_exceeded(caps: Caps, fleet: int, cordoned: int, ours: int, hour: int) -> None:
    if allowed(caps, fleet, cordoned, ours, hour):
        assert Fraction(cordoned + 1) <= max(Fraction(str(caps.share)) * fleet, 1) and fleet > cordoned
        assert ours < caps.at_once and hour < caps.per_hour
    else:
        assert not allowed(caps, fleet, cordoned + 1, ours + 1, hour + 1)
