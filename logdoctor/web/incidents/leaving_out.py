"""Commands that start a job, made to leave nodes out: where their launcher can be told to, and nothing in the command
asks for these nodes.

A launcher that gets an option twice takes the last one, and it reads options only before the program that it starts.
So the options are read as it reads them; where that cannot be done for sure, the command is left alone and what is to
be added by hand is said.
"""

from collections.abc import Sequence
from typing import NamedTuple

import regex

from logdoctor.errors import InputError
from logdoctor.nodes.slurm import expanded
from logdoctor.web.incidents.shell_words import Command

SLURM = ("sbatch", "srun", "salloc")
"""Programs that start jobs of Slurm."""

_VALUED = frozenset(
    """account acctg-freq array batch bb bbf bcast-exclude begin chdir cluster cluster-constraint clusters comment
    constraint container container-id core-spec cores-per-socket cpu-bind cpu-freq cpus-per-gpu cpus-per-task deadline
    delay-boot dependency distribution epilog error exclude export export-file extra extra-node-info gid gpu-bind
    gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags het-group hint input job-name jobid
    licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus mpi network nodefile nodelist
    nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket output partition power prefer priority
    profile prolog qos relative reservation signal slurmd-debug sockets-per-node switches task-epilog task-prolog
    thread-spec threads threads-per-core time time-min tmp tres-bind tres-per-task uid wait-all-nodes wckey
    wrap""".split()
)
_ALONE = frozenset(
    """bcast bell compress contiguous disable-status exact exclusive external get-user-env hold ignore-pbs immediate
    interactive kill-command kill-on-bad-exit label multi-prog nice no-allocate no-bell no-kill no-requeue no-shell
    overcommit overlap oversubscribe parsable preserve-env propagate pty quiet quit-on-interrupt reboot requeue
    resv-ports send-libs spread-job stepmgr test-only unbuffered use-min-nodes verbose x11""".split()
)
_VALUED_BY = {"sbatch": {*_VALUED}, "srun": _VALUED | {"wait"}, "salloc": {*_VALUED}}
_ALONE_BY = {"sbatch": _ALONE | {"wait"}, "srun": {*_ALONE}, "salloc": {*_ALONE}}
_LETTERS = {
    "sbatch": ("abcdeimnopqtwxABCDFGJLMNS", "ksvHOQW"),
    "srun": ("bcdeimnopqrtwxABCDFGJLMNSTW", "klsuvEHIKOQXZ"),
    "salloc": ("bcdmnpqtwxABCDFGJLMNS", "ksvHIKOQ"),
}
"""Options of one letter that take a value, and that stand alone."""
_LONG = {"x": "exclude", "w": "nodelist", "F": "nodefile"}

_CHOOSES = regex.compile(r"(?:-[ie].*|--(?:inc|exc)[a-z]*(?:=.*)?|--num_(?:nodes|gpus)(?:=.*)?)", regex.DOTALL)
"""Options of DeepSpeed with which no nodes can be left out besides."""


class Left(NamedTuple):
    """A command without some nodes, with what to know of it; or `why_not`."""

    command: Command | None = None
    notes: tuple[str, ...] = ()
    why_not: str = ""


class _Option(NamedTuple):
    name: str
    value: str
    begin: int
    end: int


def without(command: Command, nodes: Sequence[str]) -> Left:
    """A command that leaves nodes out, as far as its launcher can be told to; as it is when there are none."""
    if not nodes:
        return Left(command)
    if command.program in SLURM:
        return _without_in_slurm(command, nodes)
    if why := _asked_for(command.words, nodes):
        return Left(why_not=why)
    if command.program == "deepspeed":
        return _without_in_deepspeed(command, nodes)
    return Left(command, (f"Run it without {some(nodes)}: the command has no option that excludes nodes.",))


def exclude(nodes: Sequence[str]) -> str:
    """The option with which Slurm leaves nodes out."""
    return f"--exclude={','.join(nodes)}"


def some(nodes: Sequence[str]) -> str:
    """The names of some nodes, in words."""
    return ", ".join(nodes[:5]) + (f" and {len(nodes) - 5} more" if len(nodes) > 5 else "")


def _without_in_slurm(command: Command, nodes: Sequence[str]) -> Left:
    by_hand = f"Put {exclude(nodes)} among the options of {command.program} by hand"
    options, end, unclear = _read(command)
    if unclear:
        return Left(why_not=f"{by_hand}: its option {unclear[:60]} is not known here.")
    if ":" in command.options[end:]:
        return Left(why_not=f"{by_hand}, for each part of the job: it has several.")
    if why := _chosen(options, nodes):
        return Left(why_not=why)
    merged, why = _merged(options, nodes)
    if why:
        return Left(why_not=why)
    former = [one for one in options if one.name == "exclude"]
    mine = {at for one in former for at in range(one.begin, one.end)}
    others = [word for at, word in enumerate(command.options) if at not in mine]
    if why := _asked_for((*command.words[: command.assigned], *others), nodes):
        return Left(why_not=why)
    place = sum(at not in mine for at in range(former[-1].begin)) if former else 0
    words = (*others[:place], f"--exclude={merged}", *others[place:])
    scripted = command.program == "sbatch" and all(one.name != "wrap" for one in options)
    return Left(command.with_options(words), (_SCRIPT,) if scripted else ())


_SCRIPT = (
    "What its script requests is not known here: --exclude overrides an #SBATCH --exclude, whose nodes have "
    "to be added, and an #SBATCH --nodelist must not name the excluded nodes."
)


def _read(command: Command) -> tuple[list[_Option], int, str]:
    """The options of a launcher of Slurm, where they end, and the first one that is not known."""
    program, words = command.program, command.options
    found: list[_Option] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        if word == "--":
            return found, at + 1, ""
        name, value, takes_next = _option(program, word)
        if not name or (takes_next and at + 1 == len(words)):
            return found, at, word
        end = at + 1 + takes_next
        found.append(_Option(name, words[at + 1] if takes_next else value, at, end))
        at = end
    return found, at, ""


def _option(program: str, word: str) -> tuple[str, str, bool]:
    """The name and the value of an option, and whether its value is the next word; no name for one that is not known
    or may be read in two ways."""
    if word.startswith("--"):
        name, sign, value = word[2:].partition("=")
        if name in _VALUED_BY[program]:
            return name, value, not sign
        return (name if name in _ALONE_BY[program] else ""), value, False
    valued, alone = _LETTERS[program]
    letter, rest = word[1], word[2:]
    if letter in valued:
        return _LONG.get(letter, letter), rest, not rest
    is_clear = letter in alone and (not rest.strip(letter) or rest.isdecimal())
    return (letter if is_clear else ""), "", False


def _chosen(options: Sequence[_Option], nodes: Sequence[str]) -> str:
    """Why nodes cannot be left out of a command that chooses its nodes; "" when they can."""
    for one in options:
        if one.name == "nodefile" or (one.name == "nodelist" and "/" in one.value):
            return f"It takes its nodes from the file {one.value[:120]}. Take {some(nodes)} out of that first."
        if one.name == "nodelist":
            asked = _names(one.value)
            if asked is None:
                return f"Its --nodelist ({one.value[:120]}) cannot be read. Leave {some(nodes)} out of it by hand."
            both = [node for node in nodes if _short(node) in {_short(name) for name in asked}]
            if both:
                return f"It asks for {some(both)} itself (--nodelist={one.value[:120]}). Name other nodes there."
    return ""


def _merged(options: Sequence[_Option], nodes: Sequence[str]) -> tuple[str, str]:
    """All nodes to leave out, those that the command left out before first; or why that cannot be said."""
    before: list[str] = []
    known: set[str] = set()
    for one in options:
        if one.name != "exclude":
            continue
        if "/" in one.value:
            return "", f"It leaves out the nodes in the file {one.value[:120]}. Add {some(nodes)} there."
        names = _names(one.value)
        if not names:
            return "", f"Its --exclude ({one.value[:120]}) cannot be read. Add {some(nodes)} to it by hand."
        known.update(names)
        before.append(one.value.strip(","))
    return ",".join(dict.fromkeys((*before, *(node for node in nodes if node not in known)))), ""


def _names(hostlist: str) -> list[str] | None:
    try:
        return expanded(hostlist)
    except InputError:
        return None


def _short(node: str) -> str:
    return node.partition(".")[0].lower()


def _asked_for(words: Sequence[str], nodes: Sequence[str]) -> str:
    """Why a command cannot do without nodes that it names itself; "" when it names none."""
    for node in nodes:
        name = regex.compile(rf"(?<![\w-]){regex.escape(_short(node))}(?![\w-])", regex.IGNORECASE)
        for word in words:
            if name.search(word):
                return f"The command names {node} itself ({word[:120]}). Put another node in its place."
    return ""


def _without_in_deepspeed(command: Command, nodes: Sequence[str]) -> Left:
    """DeepSpeed parts nodes with `@`, and does not exclude any besides other choices."""
    script = next((at for at, word in enumerate(command.options) if word.endswith(".py")), len(command.options))
    chosen = next((word for word in command.options[:script] if _CHOOSES.fullmatch(word)), "")
    if chosen:
        return Left(why_not=f"It chooses its nodes itself ({chosen[:120]}). Leave {some(nodes)} out there.")
    left_out = f"--exclude={'@'.join(nodes)}"
    return Left(command.with_options((left_out, *command.options)))
