"""Nodes made faulty from outside of the product: a stand-in for Python that makes the real probe misbehave.

    python = faulty_python(tmp_path, {"n2": "hangs", "n5": "slow"})
    ProbeOptions(python=python)

It looks for the name of the node in the probe's arguments (`--node`), or in SLURMD_NODENAME when they say `slurm`. On
a node that is not named it is Python and nothing else.
"""

import contextlib
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from tests import waiting

Fault = Literal[
    "probe killed",  # the supervisor gets SIGKILL in the first gather
    "rank killed",  # the rank gets it
    "hangs",  # the rank is stopped in the first gather
    "sends wrong",  # one value of what it sends is wrong, in every gather
    "receives wrong",  # one value of what it received is wrong, in every gather
    "sometimes wrong",  # one value of what it sends is wrong, in every fifth gather
    "slow",  # a fifth of a second more for every gather
    "blocked",  # no connection leaves it or comes in: it has no network
    "crash",  # torch cannot be imported
    "no torch",  # it is not installed
    "no python",  # the interpreter cannot be executed
    "garbage",  # something answers that is no probe
]

_BREAK = '''
import importlib.util, os, signal, sys, time

FAULT = os.environ["FAULT_OF_NODE"]


class Finder:
    """Breaks torch as it is imported."""

    def find_spec(self, name, path=None, target=None):
        if name == "torch" and FAULT == "crash":
            raise RuntimeError("libtorch is damaged")
        if name == "torch" and FAULT == "no torch":
            raise ModuleNotFoundError("No module named 'torch'")
        if name != "torch.distributed":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_break(module):
            execute(module)
            for gather in ("all_gather_single", "all_gather_into_tensor"):
                if hasattr(module, gather):
                    setattr(module, gather, broken(getattr(module, gather)))

        spec.loader.exec_module = execute_and_break
        return spec


def broken(gather):
    calls = 0

    def misbehave(output, part, *args, **kwargs):
        nonlocal calls
        calls += 1
        if FAULT == "probe killed":
            os.kill(os.getppid(), signal.SIGKILL)
        elif FAULT == "rank killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif FAULT == "hangs":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif FAULT == "slow":
            time.sleep(0.2)
        elif FAULT == "sends wrong" or FAULT == "sometimes wrong" and calls % 5 == 0:
            part = part.clone()
            part[len(part) // 2] ^= 1
        work = gather(output, part, *args, **kwargs)
        return Spoiling(work, output) if FAULT == "receives wrong" else work

    return misbehave


class Spoiling:
    def __init__(self, work, output):
        self.work, self.output = work, output

    def wait(self):
        self.work.wait()
        self.output[0] ^= 1 << 20
        self.output[-1] ^= 1 << 20


sys.meta_path.insert(0, Finder())
'''

_WRAPPER = """#!/bin/sh
node= previous=
for word in "$@"; do
  [ "$previous" = --node ] && node=$word
  previous=$word
done
[ "$node" = slurm ] && node=$SLURMD_NODENAME
case $node in
{cases}
esac
exec {python} "$@"
"""

_CASE = """{node}) FAULT_OF_NODE='{fault}' PYTHONPATH={folder}; export FAULT_OF_NODE PYTHONPATH; {before};;"""

_BEFORE = {
    "blocked": 'exec unshare --net {python} "$@"',
    "no python": "exec /nonexistent/python3",
    "garbage": "echo '{{\"node\": 7}}'; echo logdoctor-probe started >&2; exit 0",
}


def running(test: str) -> list[int]:
    """The processes of this machine that are probes of a test, or ranks of these."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and f"\0--test\0{test}\0".encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def ended(test: str) -> bool:
    """True, once no probe of a test runs any more."""
    waiting.until(lambda: not running(test), f"the probes of {test} end")
    return True


def faulty_python(folder: Path, faults: Mapping[str, Fault], python: str = sys.executable) -> str:
    """The path of a stand-in for `python` under which the nodes named are faulty. It is written below `folder`."""
    unknown = set(faults.values()) - set(get_args(Fault))
    assert not unknown, f"no such faults: {unknown}"
    hook = folder / "break" / "sitecustomize.py"
    hook.parent.mkdir(parents=True, exist_ok=True)
    hook.write_text(_BREAK)
    cases = (
        _CASE.format(node=node, fault=fault, folder=hook.parent, before=_BEFORE.get(fault, ":").format(python=python))
        for node, fault in faults.items()
    )
    wrapper = folder / "python3"
    wrapper.write_text(_WRAPPER.format(cases="\n".join(cases), python=python))
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return str(wrapper)
