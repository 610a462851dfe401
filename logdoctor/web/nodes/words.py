"""Node actions in words for people: their effects and results."""

from collections.abc import Sequence
from itertools import groupby
from string import digits

from logdoctor.nodes.cordon.cordoning import Prospect
from logdoctor.store.nodes.places import DRY_RUN, NodeSummary
from logdoctor.store.nodes.tests import StoredTest
from logdoctor.types.nodes import NAME, Action, Conclusion, NodeState, PastCordon, Result

DOCUMENT = "/help/nodes"
"""The page that explains all of it."""
_CORDONED: dict[str, str] = {
    "slurm": "Slurm drains {node}: no new job starts there, and running jobs continue.",
    "kubernetes": "Kubernetes marks {node} as unschedulable and adds the taint logdoctor/cordon:"
    " no new pod starts there, and running pods continue.",
    "file": "A line for {node} is added to the file of cordoned nodes, which your scheduler reads;"
    " running jobs continue.",
    DRY_RUN: "Dry run: nothing will be changed on {node} or in the cluster. The cordon is only recorded.",
}
_UNCORDONED: dict[str, str] = {
    "slurm": "Slurm undrains {node}: new jobs can start there again.",
    "kubernetes": "Kubernetes can schedule on {node} again; the taint of logdoctor is removed.",
    "file": "The line for {node} is removed from the file of cordoned nodes.",
    DRY_RUN: "Dry run: nothing will be changed on {node} or in the cluster. Only the record of the cordon is closed.",
}
_ACTS: dict[str, str] = {
    "test_nodes": "Test",
    "cordon": "Cordon",
    "reboot": "Reboot",
    "inspect_hardware": "Inspect the hardware of",
    "restart": "Restart",
    "rollback_and_skip": "Roll back and skip data of",
}
_LAUNCHED: dict[str, str] = {
    "slurm": "Each world is one srun, which waits in the queue for busy nodes.",
    "ssh": "The probe is started on each node over SSH. Nothing keeps jobs off them in the meantime: test idle nodes.",
    "kubernetes": "Each node of a world runs a pod that is pinned to it.",
    "local": "The probes are processes on the host of this service.",
}
_SENTENCES = 3  # nodes, or links, that get a sentence each
_AUDITED = {"wanted": "requested", "standing": "in effect", "undone": "removed"}
_STATES = {"waiting": "is waiting for approval", "approved": "is approved and in progress"}


def cordoned(how: str, node: str) -> str:
    """Return what a cordon does."""
    return _CORDONED.get(how, "{node} is cordoned.").format(node=node)


def uncordoned(how: str, node: str) -> str:
    """Return what an uncordon does."""
    return _UNCORDONED.get(how, "{node} is uncordoned.").format(node=node)


def launched(launcher: str) -> str:
    """Return how a launcher runs a test on the nodes."""
    return _LAUNCHED.get(launcher, "")


def caps(prospect: Prospect) -> list[tuple[str, str, str, bool]]:
    """Return the use of the caps: what is counted, how many, the cap, whether reached."""
    caps, fleet = prospect.caps, prospect.fleet
    most = caps.most_out(fleet)
    out_of = f"{prospect.out:,} of {fleet:,} nodes"
    share = f"at most {most:,} ({100 * caps.share:.4g}% of the fleet, whoever cordoned them)"
    return [
        ("Out of service now", out_of, share, prospect.out >= most),
        (
            "Cordoned by logdoctor",
            f"{prospect.ours:,}",
            f"at most {caps.at_once:,} at once",
            prospect.ours >= caps.at_once,
        ),
        (
            "Cordoned in the last hour",
            f"{prospect.last_hour:,}",
            f"at most {caps.per_hour:,} an hour",
            prospect.last_hour >= caps.per_hour,
        ),
    ]


def act(action: Action, job: str | None = None) -> str:
    """Return what an action does, in a few words that name its target."""
    target = few(action.nodes) if action.nodes else (job or "the job")
    return f"{_ACTS[action.kind]} {target}"


def few(names: Sequence[str], most: int = 3) -> str:
    """Return names in one line: all of a few, else the first and a count."""
    more = f" and {len(names) - most + 1:,} more"
    return ", ".join(names) if len(names) <= most else ", ".join(names[: most - 1]) + more


def ranges(names: Sequence[str]) -> str:
    """Compress names as schedulers write them, in order of first appearance: gpu-[001-512],login."""
    groups: dict[tuple[str, int], set[int]] = {}
    for name in names:
        bare = name.rstrip(digits)
        groups.setdefault((bare, len(name) - len(bare)), set()).add(int(name[len(bare) :] or 0))
    return ",".join(_range(bare, width, sorted(numbers)) for (bare, width), numbers in groups.items())


def _range(bare: str, width: int, numbers: list[int]) -> str:
    """Compress names of one kind, given by prefix, width of the number, and numbers."""
    if not width:
        return bare
    runs = [[part for _, part in run] for _, run in groupby(enumerate(numbers), lambda one: one[1] - one[0])]
    parts = [f"{run[0]:0{width}}" if len(run) == 1 else f"{run[0]:0{width}}-{run[-1]:0{width}}" for run in runs]
    return f"{bare}{parts[0]}" if len(numbers) == 1 else f"{bare}[{','.join(parts)}]"


def step(name: str) -> str:
    """Return a step of the audit log in words."""
    return _AUDITED.get(name) or name.replace("_", " ")


def state(word: str) -> str:
    """Return the predicate for the state of an action."""
    return _STATES.get(word, f"is {word}")


def test_state(test: StoredTest) -> str:
    """Return how a test ended: an aborted one may have been cancelled by somebody."""
    return "cancelled" if test.state == "aborted" and test.why.startswith("cancelled") else test.state


def service(one: NodeSummary) -> str:
    """Return whether a node is in service or cordoned by us, in words."""
    return "in service" if one.cordon is None else held(one.cordon)


def held(cordon: PastCordon) -> str:
    """Return the state of a cordoned node in words."""
    if cordon.how == DRY_RUN:
        return "cordoned (dry run)"
    return "cordoned" if cordon.state == "standing" else "being cordoned"


def known(state: NodeState) -> str:
    """Return the state of a node in the cluster; "" if unremarkable."""
    in_raw = state.reason in state.raw
    said = state.raw if in_raw else f"{state.raw} ({state.reason})".strip()
    return said or ("cordoned" if state.cordoned else "")


def is_name(name: str) -> bool:
    """Return whether a name is valid for a node; names from logs may be anything."""
    return NAME.fullmatch(name) is not None


def speed(one: Result) -> str:
    """Return the bus bandwidth of a world's largest gather at its slowest node, or ""."""
    found = [reading.bandwidth[max(reading.bandwidth, key=int)] for reading in one.readings if reading.bandwidth]
    return f"{min(found):.3g} GB/s" if found else ""


def answers(found: Conclusion) -> list[tuple[str, str]]:
    """Return a test's conclusion, worst first, as pairs of a word and a sentence. The words are faulty, slow, link,
    open and healthy."""
    said = []
    count = len(found.findings)
    for word in ("faulty", "slow"):
        bad = [one for one in found.findings if one.standing == word]
        if len(bad) > _SENTENCES:
            said.append((word, f"{len(bad):,} of {count:,} nodes are {word}: {few([one.node for one in bad], 6)}"))
        else:
            said += [(word, f"{one.node} is {word}: {one.why}") for one in bad]
    for link in found.links[:_SENTENCES]:
        said.append(("link", f"The link between {' and '.join(link.ends)} is bad; both nodes are healthy"))
    if len(found.links) > _SENTENCES:
        said.append(("link", f"{len(found.links) - _SENTENCES:,} more links are bad"))
    undecided = found.named("indeterminate")
    if undecided:
        are = "is" if len(undecided) == 1 else "are"
        said.append(("open", f"{len(undecided):,} of {count:,} nodes {are} undecided: {few(undecided, 6)}"))
    if not said:
        said.append(("healthy", "The node is healthy" if count == 1 else f"All {count:,} nodes are healthy"))
    return said


def seconds(number: float) -> str:
    """Format a time span for people."""
    if number < 90:
        return f"{number:.0f} s" if number >= 10 else f"{number:.1f} s"
    return f"{number / 60:.0f} min" if number < 5400 else f"{number / 3600:.1f} h"
