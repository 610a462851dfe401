"""Finds the names that each rank saves for itself, such as f"rng{rank}", by the rank number in them."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

_NUMBER = re.compile(r"(?<!\d)\d{1,9}(?!\d)", re.ASCII)


class Numbered(NamedTuple):
    """A name with one of its numbers replaced by `{rank}`: `loader3.seed` gives `loader{rank}.seed` and 3."""

    form: str
    number: int


@lru_cache(1 << 16)
def numbered(name: str) -> tuple[Numbered, ...]:
    """Return the numbers in a name that may be ranks; a whole part that is a number counts layers or items."""
    parts = name.split(".")
    return tuple(
        Numbered(".".join([*parts[:place], f"{part[: found.start()]}{{rank}}{part[found.end() :]}"]), int(found[0]))
        for place, part in enumerate(parts)
        for found in _NUMBER.finditer(part)
        if found[0] != part
    )


def forms_of(names: Sequence[Iterable[str]]) -> tuple[str, ...]:
    """Return the sorted forms of names that each rank has with its number and nobody else. `names` are given by
    rank."""
    by_rank = [set(chain.from_iterable(map(numbered, mine))) for mine in names]
    owners = Counter(chain.from_iterable(by_rank))
    ranks = defaultdict(set)
    for rank, mine in enumerate(by_rank):
        for each in mine:
            if each.number == rank and owners[each] == 1:
                ranks[each.form].add(rank)
    return tuple(sorted(form for form, own in ranks.items() if len(own) == len(by_rank)))


class RankNames:
    """Which names of a checkpoint belong to other ranks, and which names of this rank it cannot have.

    `forms` are those of its manifest. A checkpoint saved by a single rank has none (None): then every numbered name
    counts as that of the rank with its number, which refuses the checkpoint if it has no place for it.
    """

    def __init__(
        self, rank: int, ranks: int, saved_by: int, forms: Collection[str] | None, names: Iterable[str]
    ) -> None:
        self._rank, self._ranks, self._saved_by, self._listed = rank, ranks, saved_by, forms is not None
        self._forms = {found[0].form for found in map(numbered, names) if found} if forms is None else set(forms)

    def is_of_another(self, name: str) -> bool:
        """Return whether this rank needs no place for a name of the checkpoint."""
        number = self._number(name)
        return number is not None and number != self._rank and (self._listed or number < self._ranks)

    def is_new(self, name: str) -> bool:
        """Return whether a missing name is this rank's own, and the rank did not save."""
        return self._saved_by <= self._rank == self._number(name)

    def _number(self, name: str) -> int | None:
        return next((each.number for each in numbered(name) if each.form in self._forms), None)
