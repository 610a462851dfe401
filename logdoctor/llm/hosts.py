"""Host names in log text: those that the text calls hosts, and fully qualified ones by their form.

Look-alikes (`rank3`, `mlx5_0`, `torch.cuda`, `train.py`) stay: nobody can reason about a masked word.
"""

import re
from collections.abc import Iterable

from logdoctor.text import origin

_NAME = r"[A-Za-z][A-Za-z0-9_.-]{0,252}"
_ANY = re.compile(
    rf"srun: error: ({_NAME}): task"
    rf"|\b(?:STEP|JOB) [\d.]{{1,30}} ON ({_NAME}) CANCELLED"
    r"|(?<![A-Za-z0-9])(?:host_?name|node_?name|node_?list|slurmd_nodename|master_addr(?:ess)?)"
    rf"[\"']?[ \t]{{0,4}}[:=][ \t]{{0,4}}[\"']?({_NAME})"
    rf"|\d\d:\d\d:\d\d(?:[.,]\d{{1,9}})?(?:Z|[+-]\d\d:?\d\d)?\]? ({_NAME})"
    r" (?:kernel|systemd[\w-]{0,30}|slurm(?:d|ctld|dbd|stepd)|sshd|dockerd|containerd|kubelet|munged|chronyd|ntpd"
    r"|crond?|sudo|rsyslogd|opensm|ibacm|dcgm[\w-]{0,30}|nv-[\w-]{1,30}|nvidia[\w-]{0,30})(?:\[\d{1,9}\])?:"
    rf"|(?<![\w.-])({_NAME}) kern(?:el)?: "
    rf"|(?<![\w.-])({_NAME}):\d{{1,9}}:\d{{1,9}} \[\d{{1,4}}\] "
    rf"|(?<![\w.-])({_NAME})<\d{{1,5}}>",
    re.I,
)
"""Places where only a host stands: in messages of Slurm, syslog and NCCL, and in variables."""
_NUMBERED = re.compile(
    r"(?<![A-Za-z0-9_])(?:hosts?|nodes?|machine|server|master|peer|rdzv_endpoint|endpoint)"
    rf"[\"']?[ \t]{{0,12}}[:=]?[ \t]{{0,12}}[\"']?({_NAME})"
    rf"|(?<=://)({_NAME})"
    rf"|\d\d:\d\d:\d\d(?:[.,]\d{{1,9}})?(?:Z|[+-]\d\d:?\d\d)?\]? ({_NAME}) [\w./-]{{1,60}}\[\d{{1,9}}\]:"
    r"|(?<![\w.-])([A-Za-z][A-Za-z0-9]{0,60}-[A-Za-z0-9-]{1,60}):\d{4,5}(?![\d:])",
    re.I,
)
"""Places where a host may stand; it counts if it has a digit."""
_NONE = re.compile(
    r"(?:localhost|none|null|true|false|unknown|auto|default"
    r"|(?:rank|local_rank|step|epoch|iter|iteration|layer|cuda|device|worker|loss|stage|task|thread|process|pid"
    r"|mlx\d*_|ib|eth|en[ospx]|[ahblv]|bf|fp|int|uint|sm_|cu|utf|tf|md|sha|ipv|nccl|http)[_-]?\d{1,3}|gpu[_-]?\d)\Z",
    re.I,
)
_NEVER = re.compile(r"(?:localhost|none|null|true|false|(?:local_)?rank[_-]?\d{1,3})\Z", re.I)
"""What nobody means by the name of a host."""
_LIKE_A_NAME = re.compile(r"[A-Za-z]|\d[.-]\d+[.-]\d")
LIST = re.compile(r"(?<![\w.-])[A-Za-z][A-Za-z0-9_-]{0,60}\[\d{1,6}(?:[,-]\d{1,6}){0,500}\]")
"""A name with numbers in brackets, such as `gpu-cn-[0713-0720,0722]`."""
_WIDE = re.compile(r"-\[|\[(?:\d{2,6}[,-])+\d{2,6}\]\Z")
_FULL = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z]{2,}\Z")
_DOMAINS = frozenset(
    "com net org edu gov mil int cn de fr uk jp eu ch kr nl se fi dk ca au tw hk sg br in ru "
    "local localdomain internal intern intra lan corp cluster svc hpc home arpa".split()
)
_DOMAINS_OF_THREE = _DOMAINS | frozenset("io ai co us it es at be no dev cloud tech".split())
_PUBLIC = re.compile(
    r"(?:\A|\.)(?:pytorch|python|pypi|readthedocs|apache|kernel)\.org\Z"
    r"|(?:\A|\.)(?:github|githubusercontent|nvidia|deepspeed)\.com\Z|(?:\A|\.)huggingface\.co\Z|(?:\A|\.)wandb\.ai\Z",
    re.I,
)
"""Public sites are no secret, and a model that knows the name can say what is down."""


def called(text: str) -> set[str]:
    """Return the names in places of hosts: before messages, and in words of launchers and NCCL."""
    found = [node for line in text.split("\n") if len(line) > 3 and (node := origin(line).node)]
    found += map(_group, _ANY.finditer(text))
    found += [name for name in map(_group, _NUMBERED.finditer(text)) if any(map(str.isdigit, name))]
    return {name for name in (one.rstrip("._-") for one in found) if is_name(name)}


def known(names: Iterable[str]) -> set[str]:
    """Return the host names that are masked everywhere: all but ranks and `localhost`."""
    return {name for name in names if len(name) > 1 and _LIKE_A_NAME.search(name) and not _NEVER.match(name)}


def is_name(word: str) -> bool:
    """Return whether a word in the place of a host may be one; an address may not."""
    return len(word) > 1 and any(c.isalpha() for c in word) and not _NONE.match(word) and ".py" not in word


def is_full(word: str) -> bool:
    """Return whether a word has the form of a fully qualified, non-public host name."""
    if not _FULL.match(word):
        return False
    labels = word.lower().split(".")
    known = labels[-1] in (_DOMAINS if len(labels) == 2 else _DOMAINS_OF_THREE)
    return known and not _PUBLIC.search(word)


def is_list(word: str) -> bool:
    """Return whether a match of `LIST` is Slurm's short form of many hosts, not an index."""
    return bool(_WIDE.search(word))


def _group(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None)
