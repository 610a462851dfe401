"""A supervised job: a real supervisor process, a trainer in plain Python, faults as they happen."""

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from logdoctor.job.recovery import orphans
from logdoctor.job.recovery.contract import ASK, FIX_FIRST, HELD, RESTART, RESTART_ELSEWHERE
from logdoctor.job.recovery.witness.ranks import attempt_processes
from tests import waiting
from tests.recovery.conftest import VERDICTS, Job, Judging, is_alive
from tests.recovery.makers import ours

WITH_CHECKPOINTS = "tests.recovery.catalogue"
S3, BUG, UNKNOWN = {"say": "S3", "exit": 1}, {"say": "BUG", "exit": 1}, {"say": "what?", "exit": 1}


def steps(*span: int, **further: Any) -> dict[str, Any]:
    """An attempt that makes these steps and then dies of the store."""
    return {"steps": list(span), **S3, **further}


def test_it_comes_back_while_it_gets_further_and_ends_with_the_job(job: Job, service: Judging) -> None:
    plan = [*(steps(0, 10 * n) for n in range(1, 5)), {"steps": [0, 99]}]
    assert job.run(plan, "--no-progress", "2") == 0
    assert job.decisions == ["restart"] * 4 + ["stop"]
    assert len(service.keys) == 5  # attempts of their own
    keys = [start["env"]["LOGDOCTOR_ATTEMPT_KEY"] for start in job.starts]
    assert keys == service.keys and [key.rpartition(".")[2] for key in keys] == list("12345")
    assert [event["judged"]["step"] for event in job.events("ended")[:-1]] == [9, 19, 29, 39]
    assert "after attempt 1: start it again. The verdict is S3 Storage Error, which passes." in job.err


def test_without_restart_nothing_is_different(job: Job, service: Judging) -> None:
    from tests.send.conftest import Sender

    sender = Sender(service, job.folder)
    process = sender.start("run", "--stream", "s", "--", "sh", "-c", "echo S3; exit 3")
    assert process.wait() == 3 and not job.state.exists() and len(service.keys) == 1
    sender.stop()


@pytest.mark.parametrize(
    ("last", "code", "kind"),
    [(UNKNOWN, ASK, "ask"), (BUG, FIX_FIRST, "stop")],
)
def test_what_is_not_to_be_restarted_ends_with_a_code(job: Job, last: dict[str, Any], code: int, kind: str) -> None:
    assert job.run([{"steps": [0, 5], **last}]) == code
    assert job.decisions == [kind] and len(job.starts) == 1


def test_an_unknown_is_restarted_when_told(job: Job) -> None:
    assert job.run([{"steps": [0, 5], **UNKNOWN}, {}], "--restart-unknown") == 0
    assert len(job.starts) == 2


def test_a_crash_loop_ends_after_three_attempts_without_progress(job: Job) -> None:
    assert job.run([steps(0, 10), steps(0, 10)]) == ASK
    assert len(job.starts) == 4 and job.decisions == ["restart"] * 3 + ["ask"]


def test_a_dry_run_says_what_it_would_do(job: Job) -> None:
    assert job.run([steps(0, 10, exit=7)], "--dry-run") == 7
    assert len(job.starts) == 1
    assert "after attempt 1: it would be decided to start it again" in job.err
    assert job.run([steps(0, 10, exit=7)], "--dry-run") == 7
    assert [event["anew"] for event in job.events("begun")] == [True, True]


def test_the_death_of_the_command_is_died_again(job: Job) -> None:
    assert job.run([steps(0, 5, kill=9)], "--dry-run") == -signal.SIGKILL


def test_the_checkpoint_and_the_batches_are_told(job: Job) -> None:
    plan = [
        steps(0, 60, save={"step": 50}),
        steps(0, 80, save={"step": 70}),
        {"steps": [0, 95], "save": {"step": 92}, "say": "SPIKE", "exit": 1},
        {"steps": [70, 85], "say": "SPIKE", "exit": 1},
        {},
    ]
    words = ("--resume-arg", "--load {checkpoint}", "--skip-arg=--skip={ranges}", "--skip-batches", "10")
    assert job.run(plan, "--checkpoints", str(job.folder / "ckpt"), *words, module=WITH_CHECKPOINTS) == 0
    ckpt = job.folder / "ckpt"
    assert [start["argv"] for start in job.starts] == [
        [],
        ["--load", f"{ckpt}/50"],
        ["--load", f"{ckpt}/70"],
        ["--load", f"{ckpt}/70", "--skip=71-100"],  # not 92, which is newer than the spike; 20 to its onset, 10 more
        ["--load", f"{ckpt}/70", "--skip=71-110"],  # the second spike: twice as many behind the onset
    ]
    told = [(start["env"].get("LOGDOCTOR_RESUME"), start["env"].get("LOGDOCTOR_SKIP_BATCHES")) for start in job.starts]
    assert told[0] == (None, None) and told[1] == (f"{ckpt}/50", None) and told[3] == (f"{ckpt}/70", "71-100")
    noted = (job.folder / "noted").read_text().splitlines()
    assert noted[:2] == ["loaded 50", "loaded 70"]


def test_a_spike_that_comes_again_and_again_is_for_a_person(job: Job) -> None:
    spike = {"steps": [0, 95], "say": "SPIKE", "exit": 1}
    plan = [steps(0, 60, save={"step": 50}), spike]
    options = ("--checkpoints", str(job.folder / "ckpt"), "--no-progress", "9", "--skip-batches", "10")
    assert job.run(plan, *options, module=WITH_CHECKPOINTS) == ASK
    assert [start["env"].get("LOGDOCTOR_SKIP_BATCHES") for start in job.starts] == [
        None,
        None,
        "51-100",
        "51-110",
        "51-130",
    ]
    assert "spiked again after the skip was widened 2 times" in job.err


def test_a_job_that_saves_when_it_is_ended_leaves_the_same_batches_out_afterwards(job: Job) -> None:
    plan = [
        steps(0, 60, save={"step": 50}),
        {"steps": [0, 95], "say": "SPIKE", "exit": 1},
        {"steps": [50, 60], "hang": True, "on_term": {"exit": 0}},
        {},
        {},
    ]
    options = ("--checkpoints", str(job.folder / "ckpt"), "--skip-batches", "10")
    run = job.start(plan, *options, module=WITH_CHECKPOINTS)
    waiting.until(lambda: len(job.starts) == 3)
    run.process.terminate()
    assert run.wait() == 0
    assert job.run(plan, *options, module=WITH_CHECKPOINTS) == 0  # it goes on, and is done then
    assert job.run(plan, *options, module=WITH_CHECKPOINTS) == 0
    told = [start["env"].get("LOGDOCTOR_SKIP_BATCHES") for start in job.starts]
    assert told == [None, None, "51-100", "51-100", None]


def test_while_batches_are_left_out_a_folder_that_is_away_leaves_the_choice_to_nobody(job: Job) -> None:
    """The program would take the newest, which was saved after the spike."""
    older, newest = (str(ours(job.folder / "c", step)) for step in (10, 92))
    plan = [
        {"steps": [92, 95], "say": "SPIKE", "exit": 1},
        steps(10, 50, move=["c", "away"]),
        steps(10, 60, move=["away", "c"]),
        {},
    ]
    assert job.run(plan, "--checkpoints", str(job.folder / "c"), "--skip-batches", "10") == 0
    told = [(start["env"].get("LOGDOCTOR_RESUME"), start["env"].get("LOGDOCTOR_SKIP_BATCHES")) for start in job.starts]
    assert told == [(newest, None), *[(older, "11-100")] * 3]
    (kept,) = job.events("kept")
    assert f"{older} is to be loaded, as before." in kept["why"] and kept["why"] in job.err


def test_who_starts_it_again_while_the_folder_is_away_has_the_checkpoint_of_before(job: Job) -> None:
    older, newest = (str(ours(job.folder / "c", step)) for step in (10, 92))
    plan = [{"steps": [92, 95], "say": "SPIKE", "exit": 1}, {"steps": [10, 50], "move": ["c", "away"], **UNKNOWN}, {}]
    options = ("--checkpoints", str(job.folder / "c"), "--skip-batches", "10")
    assert job.run(plan, *options) == ASK
    (job.folder / "c").touch()  # what cannot be read as a folder
    assert job.run(plan, *options) == 0
    assert job.run(plan, *options) == 0  # the next run of the job
    told = [(start["env"].get("LOGDOCTOR_RESUME"), start["env"].get("LOGDOCTOR_SKIP_BATCHES")) for start in job.starts]
    assert told == [(newest, None), (older, "11-100"), (older, "11-100"), (None, None)]


def test_a_checkpoint_that_takes_the_place_of_the_one_before_is_progress(job: Job) -> None:
    """The first one has a name of its own, so that checkpoints count and not steps."""
    saves = [steps(0, 50, save={"step": 10 * n, "over": n > 1}) for n in range(1, 5)]
    options = ("--checkpoints", str(job.folder / "ckpt"), "--no-progress", "2")
    assert job.run([*saves, {}], *options, module=WITH_CHECKPOINTS) == 0
    assert [event["saved"] for event in job.events("ended")] == [10, 20, 30, 40, None]


def test_a_job_whose_checkpoints_are_all_suspect_is_not_left_to_load_one_of_them(job: Job) -> None:
    ours(job.folder / "c", 20, loss=float("nan"))
    assert job.run([steps(0, 30), {}], "--checkpoints", str(job.folder / "c")) == ASK
    assert len(job.starts) == 1 and "none of them is fit to be loaded" in job.err


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["the job is ended", "the supervisor dies"])
def test_what_ends_a_job_from_outside_says_nothing_against_its_checkpoint(job: Job, how: int) -> None:
    """However often: it did not fail to load it."""
    ours(job.folder / "c", 10)
    newest = str(ours(job.folder / "c", 20))
    for count in range(1, 4):
        run = job.start([{"steps": [20, 30], "hang": True}], "--checkpoints", str(job.folder / "c"))
        waiting.until(lambda count=count: len(job.starts) == count)  # type: ignore[misc] # the default
        run.process.send_signal(how)
        run.wait()
        if how == signal.SIGKILL:
            job.lose_attempt()
    assert [start["env"]["LOGDOCTOR_RESUME"] for start in job.starts] == [newest] * 3


def test_a_checkpoint_that_ends_who_loads_it_is_passed_over_after_two_attempts(job: Job) -> None:
    older = str(ours(job.folder / "c", 10))
    newest = str(ours(job.folder / "c", 20))
    assert job.run([S3, S3, {}], "--checkpoints", str(job.folder / "c")) == 0
    assert [start["env"]["LOGDOCTOR_RESUME"] for start in job.starts] == [newest, newest, older]


@pytest.mark.parametrize(
    ("line", "pattern", "code"),
    [
        ("update {} of 60 :: score {}.1", "", 0),
        ("{}. round done", r"^(\d+)\. round", 0),
        ("{}. round done", "", ASK),
    ],
    ids=["by structure", "declared", "not told"],
)
def test_steps_that_no_rule_reads_are_progress(job: Job, line: str, pattern: str, code: int) -> None:
    job.environment |= {"LOGDOCTOR_PROGRESS": pattern} if pattern else {}
    plan = [{**S3, "lines": [line.format(step, step % 3) for step in range(end)]} for end in (10, 20, 30, 40)]
    assert job.run([*plan, {}], "--no-progress", "2", "--max-restarts", "2") == code


def test_a_declaration_of_steps_that_cannot_be_used_is_refused(job: Job) -> None:
    for pattern in (r"step=\d+", r"(a)(\d+)", "("):
        job.environment["LOGDOCTOR_PROGRESS"] = pattern
        assert job.run([{}]) == 2 and not job.starts
        assert "LOGDOCTOR_PROGRESS" in job.err and "one group around the number" in job.err


def damaged(path: Path) -> str:
    """Change a byte of a checkpoint, and none of its size."""
    data = bytearray((path / "__1_0.distcp").read_bytes())
    data[7] ^= 1
    (path / "__1_0.distcp").write_bytes(data)
    return str(path)


def test_a_damaged_checkpoint_is_passed_over_and_the_one_before_is_loaded(job: Job) -> None:
    older = str(ours(job.folder / "c", 10))
    newest = [damaged(ours(job.folder / "c", step)) for step in (20, 30)]
    fails = {"say": "RuntimeError: LOAD", "exit": 1}
    bug = {"say": "NameError: BUG", "exit": 1}  # what reads the damaged bytes may call it anything
    assert job.run([fails, bug, {}], "--checkpoints", str(job.folder / "c")) == 0
    assert [start["env"]["LOGDOCTOR_RESUME"] for start in job.starts] == [newest[1], newest[0], older]
    assert "step-30.attempt-1 is damaged (__1_0.distcp has changed since it was saved): it goes on from" in job.err
    assert job.run([bug], "--checkpoints", str(job.folder / "c")) == FIX_FIRST
    assert job.starts[-1]["env"]["LOGDOCTOR_RESUME"] == older, "who comes next passes them over, too"


def test_where_all_checkpoints_are_damaged_a_person_decides(job: Job) -> None:
    newest = [damaged(ours(job.folder / "c", step)) for step in (10, 20)]
    assert job.run([{"say": "RuntimeError: LOAD", "exit": 1}], "--checkpoints", str(job.folder / "c")) == ASK
    assert [start["env"]["LOGDOCTOR_RESUME"] for start in job.starts] == [newest[1], newest[0]]
    assert "none of them is fit to be loaded" in job.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_the_job_may_save(job: Job, number: signal.Signals) -> None:
    saves = {"hang": True, "steps": [0, 5], "on_term": {"save": {"step": 5, "seconds": 0.5}, "exit": 0}}
    code = {"hang": True, "steps": [0, 5]} if number == signal.SIGINT else saves
    run = job.start([code])
    waiting.until(lambda: job.starts)
    run.process.send_signal(number)
    assert run.wait() in (0, 1, -number)
    assert job.decisions == ["stop"] and job.events("ended")[0]["interrupted"]
    assert (job.folder / "ckpt" / "5").exists() == (number == signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_it_was_started_to_ignore_ends_nothing(job: Job, number: signal.Signals) -> None:
    """By nohup, by cron, or in the background of a script: the job would be killed after its grace."""
    plan = [{"steps": [0, 5], "await": "told", "say": "S3", "exit": 1}, {}]
    run = job.start(plan, "--grace", "0", ignored=[number])
    waiting.until(lambda: job.starts)
    run.process.send_signal(number)
    (job.folder / "told").touch()
    assert run.wait() == 0
    assert job.decisions == ["restart", "stop"] and not job.events("ended")[0]["interrupted"]


def test_a_grace_shorter_than_a_save_ends_it_and_says_so(job: Job) -> None:
    run = job.start([{"hang": True, "on_term": {"save": {"step": 5, "seconds": 300}}}], "--grace", "0.5")
    waiting.until(lambda: job.starts)
    run.process.terminate()
    assert run.wait() == -signal.SIGKILL
    assert "It was killed 0.5 s after it was asked to end (--grace)." in job.err
    assert job.events("ended")[0]["cut_short"] and not (job.folder / "ckpt" / "5").exists()
    assert not is_alive(job.starts[0]["pid"])


def test_an_orphan_that_holds_a_port_is_ended_before_the_next_attempt(job: Job) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    job.environment["MASTER_PORT"] = str(port)
    assert job.run([steps(0, 5, orphan=port), {"listen": port}]) == 0
    assert not is_alive(job.orphan)
    assert job.events("port") == []


@pytest.mark.parametrize(
    ("last", "options"),
    [
        (BUG, ()),
        (UNKNOWN, ()),
        (S3, ("--restart-by", "exit-code")),
        ({"say": "ECC", "exit": 1}, ("--nodes-seconds", "0")),
    ],
)
def test_what_the_last_attempt_leaves_behind_is_ended(job: Job, last: dict[str, Any], options: tuple[str, ...]) -> None:
    assert job.run([{"steps": [0, 5], "orphan": 0, **last}], *options) in (ASK, FIX_FIRST, RESTART)
    assert len(job.starts) == 1 and not is_alive(job.orphan)


def test_what_a_job_leaves_behind_that_somebody_ended_is_ended(job: Job) -> None:
    run = job.start([{"hang": True, "orphan": 0}])
    waiting.until(lambda: job.starts)
    run.process.terminate()
    assert run.wait() == -signal.SIGTERM and not is_alive(job.orphan)


@pytest.mark.parametrize(("last", "options", "code"), [({}, (), 0), ({**S3, "exit": 3}, ("--dry-run",), 3)])
def test_what_a_job_that_ended_well_leaves_behind_goes_on_until_it_runs_again(
    job: Job, last: dict[str, Any], options: tuple[str, ...], code: int
) -> None:
    assert job.run([{"orphan": 0, **last}, {}], *options) == code
    assert is_alive(job.orphan)
    assert job.run([{}], *options) == 0
    assert not is_alive(job.orphan)


def test_what_was_there_before_the_job_is_left_alone_after_it(job: Job) -> None:
    """A batch script may have started something before it becomes the supervisor."""
    script = 'sleep 300 & echo $! >"$0"; exec "$@"'
    run = job.start([{"orphan": 0, **BUG}], around=("sh", "-c", script, str(job.folder / "other")))
    assert run.wait() == FIX_FIRST and not is_alive(job.orphan)
    assert is_alive(int((job.folder / "other").read_text()))


def test_what_a_killed_supervisor_left_is_ended_by_the_next_and_counts_on(job: Job) -> None:
    run = job.start([steps(0, 5), {"hang": True, "orphan": 0}])
    waiting.until(lambda: (job.folder / "orphan").exists() and len(job.starts) == 2)
    orphan, trainer = job.orphan, job.starts[1]["pid"]
    run.process.kill()
    run.wait()
    job.kill_runner()
    assert is_alive(orphan) and is_alive(trainer)
    assert job.run([{}]) == 0
    assert not is_alive(orphan) and not is_alive(trainer)
    assert [event["anew"] for event in job.events("begun")] == [True, False]
    assert job.events("started")[-1]["number"] == 3


def test_a_foreign_process_on_the_port_is_named_and_left_alone(job: Job) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        job.environment["MASTER_PORT"] = str(held.getsockname()[1])
        assert job.run([{}]) == 0
        assert f"is held by {os.getpid()} (" in job.err


@pytest.mark.parametrize(("say", "code"), [("S3", ASK), ("BUG", FIX_FIRST)])
def test_a_record_that_cannot_be_written_loses_no_decision_and_starts_nothing(job: Job, say: str, code: int) -> None:
    """As when a disk fills while the job runs; restarts that are not counted could go on for ever."""
    run = job.start([{"steps": [0, 5], "await": "full", "say": say, "exit": 1}, {}])
    waiting.until(lambda: job.starts)
    (job.state / "record.jsonl").unlink()
    (job.state / "record.jsonl").symlink_to("/dev/null")
    (job.folder / "full").touch()
    assert run.wait() == code
    assert len(job.starts) == 1 and job.err.count("cannot be written (is a link to another place") == 1
    assert f"The verdict is {VERDICTS[say]['reason']}" in job.err or "its record cannot be written" in job.err


def test_two_supervisors_exclude_each_other(job: Job) -> None:
    first = job.start([{"hang": True}])
    waiting.until(lambda: job.starts)
    second = job.start([{"hang": True}])
    assert second.wait() == HELD
    assert f"job job is supervised by process {first.process.pid} on " in job.err
    assert len(job.starts) == 1 and first.process.poll() is None
    first.process.terminate()
    first.wait()
    assert job.run([{}]) == 0  # the lease ended with its holder


def test_an_attempt_whose_supervisor_was_killed_goes_on_alone(job: Job) -> None:
    first = job.start([{"hang": True}])
    waiting.until(lambda: job.starts)
    first.process.kill()
    first.process.wait()
    assert job.start([{}]).wait() == HELD
    assert is_alive(job.starts[0]["pid"])
    os.kill(job.starts[0]["pid"], signal.SIGKILL)
    waiting.until(lambda: job.start([{}]).wait() == 0)


def test_a_job_that_was_done_while_nobody_supervised_it_is_not_started_again(job: Job) -> None:
    first = job.start([{"steps": [0, 5], "await": "go"}])
    waiting.until(lambda: job.starts)
    first.process.kill()
    first.process.wait()
    (job.folder / "go").touch()
    waiting.until((job.state / "done").exists)
    waiting.until(lambda: job.start([{}]).wait() != HELD)
    assert len(job.starts) == 1 and job.events("decided")[-1]["code"] == 0
    assert "It was done while nobody supervised it." in (job.folder / "err").read_text()
    assert job.run([{}]) == 0 and len(job.starts) == 2, "who asks once more gets it"
    assert [event["anew"] for event in job.events("begun")] == [True, False, True]


def test_a_program_that_says_that_it_is_done_is_believed_when_the_node_dies_then(job: Job) -> None:
    first = job.start([{"steps": [0, 5], "done": True, "say": "S3", "exit": 1}, {"done": True, "hang": True}])
    waiting.until(lambda: len(job.starts) == 2 and (job.state / "done").exists())
    first.process.kill()
    first.process.wait()
    job.lose_attempt()
    waiting.until(lambda: job.start([{}]).wait() == 0)
    assert len(job.starts) == 2


def test_a_job_that_somebody_ended_while_nobody_supervised_it_is_not_done(job: Job) -> None:
    first = job.start([{"hang": True, "steps": [0, 5], "on_term": {"save": {"step": 5, "seconds": 0}, "exit": 0}}, {}])
    waiting.until(lambda: job.starts)
    first.process.kill()
    first.process.wait()
    told = Path(f"/proc/{job.starts[0]['pid']}/stat").read_text()
    os.kill(int(told.rpartition(")")[2].split()[1]), signal.SIGTERM)
    waiting.until(lambda: not is_alive(job.starts[0]["pid"]))
    waiting.until(lambda: job.start([{}]).wait() == 0)
    assert len(job.starts) == 2


def test_a_watcher_whose_supervisor_was_killed_does_not_keep_the_lease(job: Job) -> None:
    first = job.start([{"hang": True}], "--end-on", "hang")
    waiting.until(lambda: job.starts)
    first.process.kill()
    first.process.wait()
    os.kill(job.starts[0]["pid"], signal.SIGKILL)
    waiting.until(lambda: job.start([{}], "--end-on", "hang").wait() == 0)


def test_a_request_to_stop_ends_the_attempt_that_it_names(job: Job, service: Judging) -> None:
    hang = {"outcome": "failed", "reason": "Hang", "recovery": "restart", "confidence": 0.9, "fingerprint": "h"}
    run = job.start([{"hang": True, "steps": [0, 5]}, {}])
    waiting.until(lambda: job.starts)
    key = job.starts[0]["env"]["LOGDOCTOR_ATTEMPT_KEY"]
    part = job.state / "part"
    part.write_text(json.dumps({"attempt": key, "verdict": {**hang, "progress": {"step": 4}}}))
    part.rename(job.state / "stop.json")
    assert run.wait() == 0
    assert [event["judged"] and event["judged"]["reason"] for event in job.events("ended")] == ["Hang", None]


def test_a_stale_request_is_gone_when_a_supervisor_begins(job: Job) -> None:
    job.state.mkdir(parents=True, mode=0o700)
    (job.state / "stop.json").write_text("{}")
    assert job.run([{}]) == 0
    assert not (job.state / "stop.json").exists()


def test_clocks_that_jump_change_no_decision(job: Job) -> None:
    """Times on record lie in the future, and the order of events is the order of lines."""
    assert job.run([steps(0, 10)], "--no-progress", "2") == ASK
    record = job.state / "record.jsonl"
    events = [json.loads(line) | {"at": 9e9 - number * 1e6} for number, line in enumerate(record.open())]
    events = [event for event in events if event["event"] != "decided" or event["kind"] != "ask"]
    record.write_text("".join(json.dumps(event) + "\n" for event in events))
    seconds = [event["seconds"] for event in job.events("ended")]
    assert all(0 <= one < 1e5 for one in seconds)
    assert job.run([steps(0, 10)], "--no-progress", "4") == ASK
    assert len(job.starts) == 3 + 2  # the attempts before count


def test_a_person_who_starts_it_again_begins_anew(job: Job) -> None:
    for _ in range(2):
        assert job.run([steps(0, 10)], "--no-progress", "2") == ASK
    assert [event["anew"] for event in job.events("begun")] == [True, True]
    assert len(job.starts) == 2 * 3


def test_the_service_is_away_and_the_job_is_not_lost(job: Job, service: Judging) -> None:
    """The output is diagnosed here then, by the rules that the service has."""
    service.stop()
    plan = [{"steps": [0, 6], "say": 'botocore.exceptions.EndpointConnectionError: "https://s3"', "exit": 1}, {}]
    assert job.run(plan, "--verdict-seconds", "0.5", "--drain-seconds", "0.5") == 0
    assert job.decisions == ["restart", "stop"]
    assert job.events("ended")[0]["judged"]["reason"] == "S3 Storage Error"


def test_the_service_comes_back_in_time(job: Job, service: Judging) -> None:
    service.fail_with = 503
    run = job.start(
        [steps(0, 6), {}],
    )
    waiting.until(lambda: job.starts)
    service.fail_with = None
    assert run.wait() == 0
    assert job.events("ended")[0]["judged"]["reason"] == "S3 Storage Error"


def test_a_service_that_is_gone_is_not_waited_for(job: Job, service: Judging) -> None:
    """All other waits are ten minutes."""
    service.stop()
    plan = [{"steps": [0, 6], "say": 'botocore.exceptions.EndpointConnectionError: "https://s3"', "exit": 1}, {}]
    assert job.run(plan, "--away-seconds", "3") == 0
    first, last = job.events("ended")
    assert first["judged"]["reason"] == "S3 Storage Error" and job.decisions == ["restart", "stop"]
    assert first["sending"] > 1 and first["judging"] > 1 and last["sending"] > 1, "the record says where the time went"


@pytest.mark.parametrize(("command", "code", "told"), [("nosuchcmd", 127, "not found"), ("/etc", 126, "cannot be run")])
def test_a_command_that_cannot_be_started_is_not_judged(alone: Job, command: str, code: int, told: str) -> None:
    assert alone.start([], program=[command]).wait() == code
    assert f"{command}: " in alone.err and told in alone.err and "verdict" not in alone.err
    (ended,) = alone.events("ended")
    assert ended["judged"] is None and alone.decisions == ["stop"]


def test_a_launcher_that_is_killed_is_started_again(alone: Job) -> None:
    """Its ranks are ended, and what they print says nothing."""
    code = (
        "import os, subprocess, sys, time\n"
        "if os.path.exists('begun'): sys.exit()\n"
        "open('begun', 'w').close()\n"
        "rank = 'import time; print(\"step: 7 | loss: 2.5\", flush=True); time.sleep(3000)'\n"
        "subprocess.Popen([sys.executable, '-c', rank], env={**os.environ, 'RANK': '0'})\n"
        "time.sleep(3000)\n"
    )
    run = alone.start([], program=[sys.executable, "-c", code])
    log = alone.state / "log"
    waiting.until(lambda: log.exists() and b"step: 7" in log.read_bytes())
    key = alone.events("started")[0]["key"]
    (launcher,) = (one for one, told in attempt_processes(key).items() if "RANK" not in told)
    orphans.send([launcher], signal.SIGKILL)
    assert run.wait() == 0 and alone.decisions == ["restart", "stop"]
    assert [event["launcher_gone"] for event in alone.events("ended")] == [True, False]
    assert not attempt_processes(key)


def test_a_verdict_that_is_not_final_is_not_acted_upon(job: Job, service: Judging) -> None:
    service.final = False
    assert job.run([steps(0, 6)], "--verdict-seconds", "1.5") == ASK  # its log is no cause to a diagnosis here
    assert len(job.starts) == 1


@pytest.mark.parametrize(("code", "end"), [(255, (255, None)), (137, (None, 9))])
def test_an_exit_code_that_is_no_signal_is_not_told_as_one(
    job: Job, service: Judging, code: int, end: tuple[int | None, int | None]
) -> None:
    assert job.run([{"steps": [0, 5], **UNKNOWN, "exit": code}]) == ASK
    assert (service.ends[-1]["exit_code"], service.ends[-1]["signal"]) == end


def test_the_newest_output_stays_up_to_the_limit_until_the_next_attempt(alone: Job) -> None:
    def kept() -> bytes:
        files = [alone.state / name for name in ("log.before", "log")]
        assert all(file.stat().st_mode & 0o777 == 0o600 for file in files if file.exists())
        return b"".join(file.read_bytes() for file in files if file.exists())

    assert alone.run([{"steps": [0, 900], **UNKNOWN}, {"steps": [0, 1]}], "--spool-bytes", "4000") == ASK
    assert 2000 <= len(kept()) <= 4000 and kept().endswith(b"step: 899 | loss: 2.9\nwhat?\n")
    assert alone.run([{"steps": [0, 1]}]) == 0
    assert kept() == b"step: 0 | loss: 2.0\n"


def test_it_works_without_a_service(alone: Job) -> None:
    error = 'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://s3"'
    assert alone.run([{"steps": [0, 6], "say": error, "exit": 1}, {}]) == 0
    assert alone.decisions == ["restart", "stop"]
    assert not (alone.folder / "spool").exists()  # nothing waits to be sent


def action(kind: str, state: str, test: int | None = None, *nodes: str, attempt: int = 1) -> dict[str, Any]:
    """An action as the service tells it."""
    deed = {"kind": kind, "nodes": list(nodes), "mode": "auto", "why": "w", "verdict": 1, "test": test}
    return {"id": 7, "job": "job", "attempt": attempt, "state": state, "action": deed}


ECC = {"steps": [0, 6], "say": "ECC", "exit": 1}


def test_nodes_that_are_tested_and_healthy_let_it_go_on(job: Job, service: Judging) -> None:
    service.actions = [action("test_nodes", "waiting", None, "n1")]
    run = job.start([ECC, {}])
    waiting.until(lambda: job.events("nodes"))
    waiting.until(lambda: len(job.events("nodes")) == 2)
    assert "A person has to decide: action 7 (test n1)." in job.events("nodes")[1]["why"]
    service.actions = [action("test_nodes", "done", None, "n1"), action("restart", "waiting", 3)]
    assert run.wait() == 0
    assert "Test 3 found all of its nodes healthy." in job.events("decided")[0]["why"]


def test_a_cordoned_node_sends_it_elsewhere(job: Job, service: Judging) -> None:
    service.faulty = ["n1"]
    service.actions = [
        action("cordon", "done", 3, "n1"),
        action("restart", "waiting", 3),
        action("test_nodes", "done", None, "n1"),
    ]
    assert job.run([ECC]) == RESTART_ELSEWHERE
    assert job.events("decided")[0]["nodes"] == ["n1"] and job.decisions == ["move"]


def test_a_node_that_nobody_tests_is_for_a_person(job: Job, service: Judging) -> None:
    service.actions = [action("cordon", "done", 3, "n1", attempt=99)]
    assert job.run([ECC], "--nodes-seconds", "2") == ASK
    assert "Nobody tests the nodes of this job" in job.err and job.decisions == ["ask"]


def test_an_action_that_comes_a_little_later_is_waited_for(job: Job, service: Judging) -> None:
    run = job.start([ECC, {}], "--nodes-seconds", "120")
    waiting.until(lambda: len(job.events("nodes")) == 2)  # nobody has proposed anything yet
    service.actions = [action("test_nodes", "done", None, "n1"), action("restart", "waiting", 3)]
    assert run.wait() == 0


def test_a_signal_while_the_verdict_is_waited_for_ends_it(job: Job, service: Judging) -> None:
    service.final = False
    run = job.start([steps(0, 6)], "--verdict-seconds", "300")
    waiting.until(lambda: any(status == 200 and path.endswith("/verdict") for _, path, status in service.requests))
    run.process.terminate()
    assert run.wait() == ASK
    assert len(job.starts) == 1


def test_a_signal_before_a_restart_ends_it(job: Job) -> None:
    run = job.start([steps(0, 6), steps(0, 6)], "--delay", "300")
    waiting.until(lambda: len(job.events("decided")) == 2)
    run.process.terminate()
    assert run.wait() == RESTART
    assert len(job.starts) == 2 and job.events("left")


def test_a_test_that_takes_too_long_is_for_a_person(job: Job, service: Judging) -> None:
    service.actions = [action("test_nodes", "approved", None, "n1")]
    assert job.run([ECC], "--nodes-seconds", "0.3") == ASK
    assert job.decisions == ["ask"] and "Its nodes are being tested." in job.err


def test_whoever_reads_the_exit_code_starts_it_again(job: Job) -> None:
    plan = [steps(0, 6), steps(0, 6), steps(0, 6), steps(0, 6)]
    assert [job.run(plan, "--restart-by", "exit-code") for _ in plan] == [RESTART, RESTART, RESTART, ASK]
    assert len(job.starts) == 4  # the budget is kept in the state folder


def test_whoever_starts_it_gives_the_attempt_its_key(job: Job, service: Judging) -> None:
    """Other senders of the attempt have the same key; the service waits for them."""
    options = ("--restart-by", "exit-code", "--attempt-key", "uid.0")
    assert job.run([steps(0, 6)], *options) == RESTART
    assert service.keys == ["uid.0"] and all("stream" in end for end in service.ends)
