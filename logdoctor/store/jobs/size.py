"""The size of a job, from its facts."""

import msgspec


class _Size(msgspec.Struct):
    """The facts of a job that give its size."""

    gpus: int | None = None
    nodes: int | None = None
    ranks_per_node: int | None = None


_size = msgspec.json.Decoder(_Size)


def gpus_of(facts: str) -> int | None:
    """Return a job's total GPUs from its facts as JSON: as reported, else nodes times ranks per node."""
    size = _size.decode(facts)
    return size.gpus or (size.nodes or 0) * (size.ranks_per_node or 0) or None
