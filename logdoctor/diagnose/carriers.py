"""Exceptions that only report a failure elsewhere, and so do not name the cause.

`TypeError` names what is wrong; `RuntimeError` does not: its message may come from a driver, a network or a disk. A
class that only reports that another process died says even less. Where no rule knows such a report, the verdict says so
rather than blame the program.
"""

from collections.abc import Sequence

import regex

_REPORTERS = frozenset(
    "ActorDiedError ActorUnavailableError CheckpointException ChildFailedError ControllerError LaunchException"
    " OwnerDiedError ProcessExitedException ProcessRaisedException RayActorError RayTaskError RayletError"
    " RemoteTraceback SignalException TrainingFailedError TuneError UserExceptionWithTraceback WorkerCrashedError"
    " WorkerGroupError WorkerTimeoutError".split()
)
"""Classes with which launchers, pools and savers report a failure elsewhere."""

_OF_OTHERS = regex.compile(
    r"(?i)\bCUDA(?: kernel| runtime| driver|:)? ?(?:error|failure|call)|CUDA_ERROR"
    r"|\bcu(?:blas|dnn|da)\w*(?:error|status|_)|\bdriver\b|\bhardware\b|\bhip error|\bNVLink|\bECC\b|\bXid\b"
    r"|\b(?:GPU|device) (?:is|was|has) (?:lost|fallen)|\bDist(?:Backend|Network|Store)Error"
    r"|nccl|\bhccl|\bhcl\b|\bnpu\b|\bacl\w|\btpu\b|\bhsa_|miopen|xccl"
    r"|connect|socket|\bpeer|unreachable|\bnetwork|\bhttps?\b|\bURL\b|\bAPI request|\bDNS\b|hostname"
    r"|tim(?:ed|e)[ -]?out|\bkilled\b|\bsignal\b|exited|\bdied\b|crash|terminat|abort"
    r"|alloc|out of memory|\bOOM\b|checkpoint|state_dict|safetensors|pickle|corrupt|checksum|\bdata ?set\b|\bshard\b"
    r"|\bs3\b|s3:|bucket|\bstorage\b|errno|iostream|no space|\bdisk\b|quota|permission|denied|no such file"
    r"|lustre|\bnfs\b|\bgpfs\b|\bmount"
)
"""Words of faults that are not the program's own, or that have a reason of their own."""


_LAUNCHER = regex.compile(r"(?:launch|launcher|runner|cli|__main__|main)\.py:")
_OWN_PROGRAM = regex.compile(r"\bCommand \[?'?\[?'[^']{0,300}python[\d.]{0,6}'")


def is_report(name: str, message: str = "", frames: Sequence[str] = ()) -> bool:
    """Return whether an exception only reports a failure elsewhere. Its class says so, or it is a launcher's
    `CalledProcessError` for the Python program itself, by the frames where they are known."""
    word = name.rsplit(".", 1)[-1].split("(", 1)[0]
    if word == "CalledProcessError" and frames and not any(map(_LAUNCHER.match, frames)):
        return False
    return word in _REPORTERS or (word == "CalledProcessError" and _OWN_PROGRAM.search(message) is not None)


def names_another_fault(report: str) -> bool:
    """Return whether a generic exception's report names a fault that has its own reason."""
    return _OF_OTHERS.search(report[:1000]) is not None
