"""Faults, and the truth about what each one does to a run.

A fault changes files, settings, limits or the surroundings of a program, or lets something happen at a step; then the
program meets it by itself. What it returns is known before the program runs.
"""

import json
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from eval.foundry.cases import GLOO, LIGHT, TORCH, Making


class Truth(msgspec.Struct, frozen=True):
    """What a fault does. `texts` are those that a line of the cause can hold, `also` other reasons that a careful
    person could defend, `detail` a word that says more than the reason. `ranked` is set when one rank meets it, and
    `uncertain` says where the taxonomy leaves a doubt. An `outcome` other than `failed` is no failure."""

    reason: str = "None"
    texts: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    detail: str = ""
    ranked: bool = False
    uncertain: str = ""
    outcome: str = "failed"
    either: bool = False
    """Whether nobody can tell from the log if the fault is there at the next start."""


class Fault(NamedTuple):
    """A fault: what it does to a case, and which programs and launchers it fits."""

    inject: Callable[[Making], Truth]
    fits: Callable[[str, str], bool]
    harmless: bool


FAULTS: dict[str, Fault] = {}
_ANY = (*LIGHT, *TORCH)
_STEPPING = tuple(name for name in _ANY if name not in ("prepare", "serve"))
_READING = tuple(name for name in _ANY if name not in ("prepare", "reinforce"))
_SAVING = tuple(name for name in _ANY if name not in ("serve", "reinforce", "fsdp"))
_TOLD = ("bash", "torchrun", "tee", "env", "env-prefix", "spawn")


def fault(
    name: str, programs: tuple[str, ...] = _ANY, launchers: tuple[str, ...] = (), harmless: bool = False
) -> Callable[[Callable[[Making], Truth]], Callable[[Making], Truth]]:
    """Enter a fault under a name."""

    def enter(inject: Callable[[Making], Truth]) -> Callable[[Making], Truth]:
        def fits(program: str, launcher: str) -> bool:
            return program in programs and (not launchers or launcher in launchers)

        FAULTS[name] = Fault(inject, fits, harmless)
        return inject

    return enter


_UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]  # root that may not read all files

# ---- samples

Change = Callable[[Making, dict[str, Any], int], Any]
_RECORDS: dict[str, tuple[Change, str, str, str]] = {
    # name: what is done to the record, the reason, and the text that numpy and torch have for it
    "field": (lambda m, r, t: r.pop(m.config["column"]), "Key Error", "KeyError: '{column}'", ""),
    "label": (lambda m, r, t: r.update(label=f"n/a-{t}"), "Value Error", "base 10: 'n/a-{t}'", ""),
    "null": (lambda m, r, t: r.update(ids=None), "Type Error", "'NoneType' object is not iterable", ""),
    "meta": (lambda m, r, t: r.update(meta=f"en-{t}"), "Attribute Error", "'str' object has no attribute 'get'", ""),
    "weight": (lambda m, r, t: r.update(weight=0), "Zero Division Error", "division by zero", ""),
    "long": (lambda m, r, t: r.update(ids=[7] * 99, id=t), "Assertion Error", "sample {t} has 99 tokens", ""),
    "vocabulary": (
        lambda m, r, t: r["ids"].append(50000 + t), "Index Error", "index 5{t} is out of bounds", "out of range in",
    ),
    "codec": (lambda m, r, t: r.update(codec="bz7", id=t), "Called Process Error", "non-zero exit status 3", ""),
    "huge": (
        lambda m, r, t: r.update(pad=t * 10**11), "Out of Memory Error", "Unable to allocate", "can't allocate memory",
    ),
}  # fmt: skip


def _spoil(made: Making, name: str) -> Truth:
    """Change the sample of the case."""
    change, reason, small, torch = _RECORDS[name]
    change(made, made.record, made.case.token)
    text = torch if torch and made.case.program in TORCH else small
    text = text.format(t=made.case.token, column=made.config["column"])
    return Truth(reason, (text,), ranked=True)


for _name in _RECORDS:
    _programs = _READING if _name in ("vocabulary", "huge") else _ANY
    fault(f"sample-{_name}", _programs)(lambda made, name=_name: _spoil(made, name))  # type: ignore[misc]


@fault("sample-shape", tuple(name for name in _READING if name != "serve"))
def _shape(made: Making) -> Truth:
    made.record["x"].append(0.5)
    if made.case.program in TORCH:
        return Truth("Runtime Error", ("mat1 and mat2 shapes cannot be multiplied",), ranked=True)
    return Truth("Value Error", ("shapes (9,) and (8,)", "size 8 is different from 9", "mismatch"), ranked=True)


@fault("sample-nan", tuple(name for name in _STEPPING if name != "reinforce"))
def _nan(made: Making) -> Truth:
    made.record["x"][0] = float("nan")
    also = ("Value Error", "Runtime Error", "Assertion Error")
    doubt = "the loss is NaN because of a sample, and the program raises FloatingPointError"
    return Truth("Loss Spike", ("loss is nan",), also, ranked=True, uncertain=doubt)


@fault("sample-torn")
def _torn(made: Making) -> Truth:
    line = json.dumps(made.record).encode()
    made.raw[made.case.rank, made.at] = line[: len(line) // 2]
    texts = ("JSONDecodeError", "Unterminated string", "Expecting", "delimiter")
    return Truth("Dataset Loading Error", texts, ("Value Error",), ranked=True)


@fault("sample-bytes")
def _bytes(made: Making) -> Truth:
    made.raw[made.case.rank, made.at] = b'{"id": 7, "text": "caf\xe9 ' + bytes(8) + b'"}'
    return Truth("Dataset Loading Error", ("UnicodeDecodeError", "can't decode byte"), ("Value Error",), ranked=True)


@fault("file-missing")
def _missing(made: Making) -> Truth:
    made.config["manifest"] = "data/manifest.json"
    name = made.file(made.case.rank, made.at)
    made.locked.append(f"gone:data/{name}")
    return Truth("File Not Found Error", (f"No such file or directory: 'data/{name}'",), ranked=True)


@fault("file-vanishes", tuple(name for name in _STEPPING if name not in ("reinforce", "trainer", "lightning")))
def _vanishes(made: Making) -> Truth:
    made.config |= {"manifest": "data/manifest.json", "workers": 0, "per_file": 1 << 20}
    name = f"data/{made.file(made.case.rank, 0)}"
    made.event("remove", file=name)
    return Truth("File Not Found Error", (f"No such file or directory: '{name}'",), ranked=True)


@fault("file-locked")
def _locked(made: Making) -> Truth:
    name = made.file(made.case.rank, made.at)
    made.wrap = _UNPRIVILEGED
    made.locked.append(f"chmod:data/{name}")
    return Truth("Permission Error", (f"Permission denied: 'data/{name}'",), ranked=True)


# ---- settings and code


@fault("argument")
def _argument(made: Making) -> Truth:
    made.arguments += ["--shard-size", str(made.case.token)]
    return Truth("Argument Error", ("error: unrecognized arguments: --shard-size",))


@fault("setting-value")
def _setting(made: Making) -> Truth:
    made.config["learning_rate"] = f"3e-4_{made.case.token}x"
    return Truth(
        "Value Error", (f"could not convert string to float: '3e-4_{made.case.token}x'",), ranked=_only_first(made)
    )


@fault("setting-missing")
def _unset(made: Making) -> Truth:
    made.config["model"] = {f"width_{made.case.token}": 64}
    return Truth("Key Error", ("KeyError: 'hidden'",), ranked=_only_first(made))


def _only_first(made: Making) -> bool:
    """Let the fault hit rank 0, which alone reads the setting."""
    made.case = msgspec.structs.replace(made.case, rank=0)
    return True


@fault("module-missing")
def _module(made: Making) -> Truth:
    made.config["kernels"] = f"flash_kernels_{made.case.token}"
    return Truth("Import Error", (f"No module named 'flash_kernels_{made.case.token}'",))


@fault("syntax")
def _syntax(made: Making) -> Truth:
    made.schedule = f"    return BASE * (step / {made.case.token}"
    return Truth("Syntax Error", ("SyntaxError: '(' was never closed",))


_LINES = {
    "name": ("return BASE * decay_{t}", "Name Error", "name 'decay_{t}' is not defined"),
    "unbound": ("factor_{t} *= 0.5", "Name Error", "local variable 'factor_{t}'"),
    "attribute": ("return math.cosine_{t}(step)", "Attribute Error", "has no attribute 'cosine_{t}'"),
    "call": ("return BASE * rate(step)", "Type Error", "missing 1 required positional argument: 'total'"),
    "divisor": ("return BASE / (step - {at})", "Zero Division Error", "ZeroDivisionError"),
    "import": ("import lr_tables_{t}", "Import Error", "No module named 'lr_tables_{t}'"),
    "own-class": (
        'raise type("ScheduleExhausted", (Exception,), {{}})("no rate for step {at}, table {t}")',
        "Runtime Error", "ScheduleExhausted",
    ),
}  # fmt: skip


def _miscode(made: Making, name: str) -> Truth:
    """Break the schedule, for all ranks from the step on."""
    line, reason, text = _LINES[name]
    where = {"t": made.case.token, "at": made.case.step}
    made.schedule = f"    if step >= {made.case.step}:\n        {line.format(**where)}\n{made.schedule}"
    unclear = "an exception class of the program's own" if name == "own-class" else ""
    return Truth(reason, (text.format(**where),), ("Unknown", "Value Error") if unclear else (), uncertain=unclear)


for _name in _LINES:
    fault(f"code-{_name}", _STEPPING)(lambda made, name=_name: _miscode(made, name))  # type: ignore[misc]


# ---- weights and checkpoints

_LOADING = tuple(name for name in _ANY if name not in ("prepare", "reinforce", "fsdp"))


def _weights(made: Making, keep: float, width: int = 8) -> str:
    """Write weights to go on from, cut off, and return their path."""
    small = made.case.program in LIGHT
    form = made.chance.choice(("npz", "safetensors") if small else ("pt", "safetensors"))
    path = made.folder / "base" / f"model-{made.case.token}.{form}"
    path.parent.mkdir(parents=True)
    tensors = {"weights": np.zeros(width), "table": np.zeros((512, 8))}
    if form == "safetensors":
        from safetensors.numpy import save_file

        save_file(tensors if small else {"body.0.weight": np.zeros((64, width), np.float32)}, path)
    elif small:
        np.savez(path, **tensors)  # type: ignore[arg-type]
    else:
        import torch

        torch.save({"model": {"body.0.weight": torch.zeros(64, width)}, "step": 7}, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    made.config["resume"] = str(path.relative_to(made.folder))
    return made.config["resume"]


@fault("weights-torn", _LOADING)
def _torn_weights(made: Making) -> Truth:
    _weights(made, made.chance.choice((0.3, 0.7)))
    texts = ("BadZipFile", "PytorchStreamReader", "SafetensorError", "pickled", "central directory", "not a zip")
    return Truth("Model Loading Error", texts, ("Value Error",))


@fault("weights-empty", _LOADING)
def _empty_weights(made: Making) -> Truth:
    _weights(made, 0)
    texts = ("EOFError", "SafetensorError", "PytorchStreamReader", "No data left", "ran out of input", "Ran out of")
    return Truth("Model Loading Error", texts, ("Value Error", "Runtime Error"))


@fault("weights-shape", _LOADING)
def _other_weights(made: Making) -> Truth:
    _weights(made, 1, 16)
    also = ("Value Error",) if made.case.program in LIGHT else ("Runtime Error",)
    return Truth("Model Loading Error", ("size mismatch for", "weights have shape (16,)", "Missing key(s)"), also)


@fault("weights-missing", _LOADING)
def _no_weights(made: Making) -> Truth:
    path = _weights(made, 1)
    made.locked.append(f"gone:{path}")
    return Truth("File Not Found Error", (f"No such file or directory: '{path}'", f"No such file or directory: {path}"))


@fault("tokenizer-torn")
def _tokenizer(made: Making) -> Truth:
    path = made.folder / "base" / f"tokenizer-{made.case.token}.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, ')
    made.config["tokenizer"] = str(path)
    also, doubt = ("Dataset Loading Error", "Value Error", "Runtime Error"), "a tokenizer is no model and no data set"
    return Truth("Model Loading Error", ("EOF while parsing",), also, uncertain=doubt)


def _saver(made: Making) -> bool:
    """Let the fault hit rank 0 where it alone saves."""
    return made.case.program in ("ranks", "ddp", "tensor", "pipeline") and _only_first(made)


_MOUNT = 'mkdir -p output && mount -t tmpfs -o {} none output && {}exec "$@"'


@fault("disk-full", _SAVING)
def _full(made: Making) -> Truth:
    made.wrap = ["unshare", "-m", "sh", "-c", _MOUNT.format("size=256k", ""), "sh"]
    texts = ("No space left on device", "PytorchStreamWriter failed", "file write failed", "unexpected pos")
    return Truth("OS Error", texts, ("Runtime Error",) if made.case.program in TORCH else (), "space", _saver(made))


@fault("disk-read-only", _SAVING)
def _read_only(made: Making) -> Truth:
    made.wrap = ["unshare", "-m", "sh", "-c", _MOUNT.format("size=9m", "mount -o remount,ro output && "), "sh"]
    return Truth("OS Error", ("Read-only file system",), ("Permission Error",), ranked=_saver(made))


@fault("file-size", tuple(name for name in _SAVING if name in LIGHT))
def _file_size(made: Making) -> Truth:
    made.wrap = ["prlimit", "--fsize=200000"]
    return Truth("OS Error", ("File too large",), ranked=_saver(made))


@fault("output-is-file", _SAVING)
def _output(made: Making) -> Truth:
    made.locked.append("file:output")
    texts = ("File exists: '", "Not a directory: '")
    return Truth("OS Error", texts, ("File Not Found Error",), ranked=_saver(made))


@fault("output-locked", _SAVING)
def _output_locked(made: Making) -> Truth:
    made.wrap = _UNPRIVILEGED
    made.locked.append("mkdir:output")
    return Truth("Permission Error", ("Permission denied: '",), ranked=_saver(made))


# ---- network

_ANSWERS = {
    "refused": ("Connection Error", ("Connection refused",)),
    "503": ("Connection Error", ("HTTP Error 503",)),
    "reset": ("Connection Error", ("Connection reset by peer", "RemoteDisconnected", "closed connection")),
    "silent": ("Connection Error", ("timed out",)),
    "name": ("Network Error", ("Name or service not known", "name resolution", "No address associated")),
}


def _tracker(made: Making, answer: str) -> Truth:
    """Let the tracker, which rank 0 asks, fail from the step on: until the next start, or for good."""
    made.case = msgspec.structs.replace(made.case, rank=0)
    made.config["sync_every"] = 5
    made.tracker, made.tracker_from = answer, 0 if answer in ("refused", "name") else max(1, made.case.step // 5)
    reason, texts = _ANSWERS[answer]
    also = ("Network Error", "Connection Error")
    return Truth(reason, texts, also, ranked=True, either=True)


for _name in _ANSWERS:
    fault(f"tracker-{_name}", tuple(name for name in _ANY if name != "serve"))(
        lambda made, name=_name: _tracker(made, name)  # type: ignore[misc]
    )


# ---- processes

_WORDS = {
    "KILL": ("Killed",),
    "SEGV": ("Segmentation fault", "Fatal Python error"),
    "ABRT": ("Aborted", "Fatal Python error"),
    "BUS": ("Bus error", "Fatal Python error"),
    "TERM": ("Terminated",),
    "HUP": ("Hangup",),
}


def _endings(number: int, word: str) -> tuple[str, ...]:
    """Return how launchers and shells say that a process died of a signal."""
    codes = (f"Signal {number} (", f"exitcode  : -{number} ", f"exit code -{number}", f"exitcode: -{number}")
    more = (f"signal: SIG{word}", f"signal SIG{word}", f"exited with {128 + number}", f"status {128 + number}")
    return (*codes, *more, *_WORDS[word])


def _kill(made: Making, word: str) -> Truth:
    number = getattr(signal, f"SIG{word}")
    made.event("signal", number=int(number))
    if made.chance.random() < 0.5:
        made.env["PYTHONFAULTHANDLER"] = "1"
    also = ("Out of Memory Error",) if word == "KILL" else ("Runtime Error",)
    doubt = "sent from outside, a cancel or a failure" if word in ("TERM", "HUP") else ""
    return Truth(
        "Unknown",
        _endings(number, word),
        also,
        f"SIG{word}|{_WORDS[word][0]}|signal {number}",
        ranked=True,
        uncertain=doubt,
    )


for _name in _WORDS:
    fault(f"signal-{_name}", tuple(name for name in _STEPPING if name != "reinforce"), _TOLD)(
        lambda made, name=_name: _kill(made, name)  # type: ignore[misc]
    )


@fault("worker-killed", tuple(name for name in TORCH if name != "trainer"))
def _worker(made: Making) -> Truth:
    made.config["workers"] = 2
    made.event("signal", "read", number=int(made.chance.choice((signal.SIGKILL, signal.SIGBUS, signal.SIGSEGV))))
    return Truth("Dataloader Killed", ("DataLoader worker (pid",), ranked=True)


@fault("pool-killed", ("prepare",))
def _pool(made: Making) -> Truth:
    made.event("signal", "read", number=int(signal.SIGKILL))
    also, doubt = ("Dataloader Killed", "Out of Memory Error", "Runtime Error"), "a worker of a pool is no data loader"
    return Truth("Unknown", ("process pool was terminated abruptly",), also, uncertain=doubt)


@fault("engine-killed", ("serve", "reinforce"))
def _engine(made: Making) -> Truth:
    number = made.chance.choice((signal.SIGKILL, signal.SIGSEGV))
    made.event("signal", number=int(number))
    texts = (f"exit code -{number}", "ActorDiedError", "The actor is dead", "actor died")
    return Truth(
        "Unknown", texts, ("Out of Memory Error", "Runtime Error", "Node Failure"), uncertain="no reason for it"
    )


@fault("silent-exit", tuple(name for name in _STEPPING if name != "reinforce"), _TOLD)
def _exit(made: Making) -> Truth:
    code = made.chance.choice((1, 3, 7, 42))
    made.event(made.chance.choice(("exit", "leave")), code=code)
    texts = (f"exitcode  : {code} ", f"exit code {code}", f"exited with {code}", f"exitcode: {code}", f"status {code}")
    return Truth("Unknown", texts, detail=f"code {code}|status {code}", ranked=True, either=True)


@fault("memory-limit", ("loop", "ranks", "evaluate"))
def _limit(made: Making) -> Truth:
    made.wrap = ["prlimit", f"--as={1200 << 20}"]
    made.event("hog")
    return Truth("Out of Memory Error", ("MemoryError",), ranked=True, either=True)


@fault("memory-cgroup", ("loop", "ranks", "evaluate", "torch"), _TOLD)
def _cgroup(made: Making) -> Truth:
    made.memory_limit = 900 << 20
    made.event("hog")
    doubt = "only the kernel knows why it was killed"
    return Truth(
        "Out of Memory Error", _endings(9, "KILL"), ("Unknown",), "SIGKILL|Killed|memory", ranked=True, uncertain=doubt
    )


@fault("stopped", ("ranks", *GLOO), ("env", "env-prefix"))
def _stopped(made: Making) -> Truth:
    made.event("signal", number=int(signal.SIGSTOP))
    return _late(made)


@fault("late-rank", ("ranks", *GLOO), ("env", "env-prefix", "torchrun", "tee"))
def _late_rank(made: Making) -> Truth:
    made.event("sleep", seconds=50)
    return _late(made)


def _late(made: Making) -> Truth:
    made.config["timeout"] = 12
    texts = ("Timed out waiting", "timed out", "within 12 s", "Connection closed by peer", "Timed out")
    doubt = "a rank that stands still is a hang of it and a time-out of the others"
    return Truth("Hang", texts, ("NCCL Timeout Error", "Connection Error"), ranked=True, uncertain=doubt)


@fault("stands-still", ("loop", "evaluate", "torch"), ("timeout",))
def _still(made: Making) -> Truth:
    made.event(made.chance.choice(("sleep", "sleep")), seconds=60)
    return Truth("Hang", ("timeout: sending signal",), ("Unknown",), uncertain="a time limit ended it")


# ---- groups of ranks


@fault("port-taken", ("serve", "ranks", *GLOO), ("env", "env-prefix", *_TOLD[:1], "direct"))
def _port(made: Making) -> Truth:
    made.port_taken = True
    made.case = msgspec.structs.replace(made.case, rank=0)
    texts = ("ddress already in use", "EADDRINUSE")
    return Truth("OS Error", texts, ("Connection Error", "Network Error"), ranked=True, either=True)


@fault("rank-missing", GLOO, ("env", "env-prefix"))
def _world(made: Making) -> Truth:
    made.extra_ranks, made.config["timeout"] = 1, 12
    doubt = "ranks that wait for one that was never started"
    texts = ("clients joined", "Timed out after", "timed out", "Timed out waiting")
    return Truth("Connection Error", texts, ("NCCL Timeout Error", "Hang", "Value Error"), uncertain=doubt)


@fault("collective-size", ("tensor",))
def _size(made: Making) -> Truth:
    made.config["odd"] = {"step": made.case.step, "rank": made.case.rank, "width": 9}
    return Truth("Runtime Error", ("enforce fail", "op.preamble", "Connection closed by peer"), ("NCCL Timeout Error",))


@fault("collective-extra", ("ddp", "fsdp"))
def _extra(made: Making) -> Truth:
    made.config["odd"] = {"step": made.case.step, "rank": made.case.rank, "width": 3}
    texts = ("enforce fail", "op.preamble", "Timed out", "Connection closed by peer", "Detected mismatch")
    doubt = "ranks in different collectives: an error, a time-out or a hang"
    return Truth("Runtime Error", texts, ("NCCL Timeout Error", "Hang", "Connection Error"), uncertain=doubt)


@fault("good-then-killed", ("loop", "evaluate", "torch", "ranks"), _TOLD)
def _second(made: Making) -> Truth:
    made.good_first = True
    return _kill(made, "KILL")


@fault("good-then-exception", ("loop", "evaluate", "torch", "ranks", "ddp"))
def _second_raises(made: Making) -> Truth:
    made.good_first = True
    made.wrap = ["prlimit", f"--as={1200 << 20}"] if made.case.program in LIGHT else []
    made.event("hog" if made.wrap else "remove", file=f"data/no-such-{made.case.token}")
    if made.wrap:
        return Truth("Out of Memory Error", ("MemoryError",), ranked=True, either=True)
    return Truth("File Not Found Error", (f"data/no-such-{made.case.token}",), ranked=True, either=True)


# ---- nothing fails


def _fine(outcome: str, reason: str = "None") -> Truth:
    return Truth(reason, outcome=outcome)


@fault("none", harmless=True)
def _none(made: Making) -> Truth:
    return _fine("completed")


@fault(
    "skipped-samples", tuple(name for name in _ANY if name not in ("reinforce", "trainer", "lightning")), harmless=True
)
def _skipped(made: Making) -> Truth:
    name = made.chance.choice(("field", "label", "null", "meta", "weight", "long", "codec"))
    made.config["lenient"] = True
    if made.case.program == "prepare" and name == "codec":
        name = "label"
    return msgspec.structs.replace(_spoil(made, name), outcome="completed", ranked=False)


@fault("nan-skipped", ("loop", "ranks", "evaluate", "torch"), harmless=True)
def _nan_skipped(made: Making) -> Truth:
    made.config["lenient"] = True
    return msgspec.structs.replace(_nan(made), outcome="completed", uncertain="")


@fault("tracker-retried", tuple(name for name in _ANY if name != "serve"), harmless=True)
def _retried(made: Making) -> Truth:
    made.config["lenient"] = True
    truth = _tracker(made, made.chance.choice(("503", "reset", "silent")))
    made.tracker += "-twice"
    return msgspec.structs.replace(truth, outcome="recovered")


@fault("teardown", harmless=True)
def _teardown(made: Making) -> Truth:
    made.config["noise"] = made.chance.sample(("destructor", "atexit", "thread", "leak"), made.chance.choice((1, 2)))
    return _fine("completed")


@fault("started-again", ("loop", "evaluate", "torch", "ddp"), _TOLD, harmless=True)
def _again(made: Making) -> Truth:
    made.runs = 2
    truth = _kill(made, made.chance.choice(("KILL", "SEGV")))
    return msgspec.structs.replace(truth, outcome="recovered")


@fault("elastic-restart", GLOO, ("torchrun", "tee"), harmless=True)
def _elastic(made: Making) -> Truth:
    made.max_restarts = 1
    truth = _kill(made, made.chance.choice(("KILL", "SEGV")))
    return msgspec.structs.replace(truth, outcome="recovered")


@fault("cut-off", harmless=True)
def _cut(made: Making) -> Truth:
    made.cut = made.chance.uniform(0.4, 0.9)
    return _fine("running")


@fault(
    "cancelled",
    tuple(name for name in _STEPPING if name not in ("reinforce", "ranks")),
    (*_TOLD[:3], "spawn", "direct"),
    harmless=True,
)
def _cancelled(made: Making) -> Truth:
    made.end_with = int(signal.SIGINT)
    made.event("touch", file=str(made.folder / ".cancel"), seconds=0.5)
    return _fine("cancelled")


@fault("preempted", ("loop", "evaluate", "torch", "ranks"), harmless=True)
def _preempted(made: Making) -> Truth:
    made.end_with, made.config["graceful"] = int(signal.SIGTERM), True
    made.event("touch", file=str(made.folder / ".cancel"), seconds=0.5)
    return _fine("cancelled")
