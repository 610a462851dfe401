"""How large a job is, from what was told of it."""

import msgspec


class _Size(msgspec.Struct):
    """What of a job's facts tells how large it is."""

    gpus: int | None = None
    nodes: int | None = None
    ranks_per_node: int | None = None


_size = msgspec.json.Decoder(_Size)


def gpus_of(facts: str) -> int | None:
    """Return the GPUs of a job in all, from its facts as JSON: as it says, else nodes times ranks on each."""
    size = _size.decode(facts)
    return size.gpus or (size.nodes or 0) * (size.ranks_per_node or 0) or None
