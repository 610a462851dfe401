"""A trial on this machine: scores as of the unsplit run, failures diagnosed, nothing made twice."""

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from logdoctor.errors import TrialError
from logdoctor.trials.coordinator import corrected
from logdoctor.trials.journal import Event, Failed, Finished, Loaded, Started, read_journal
from logdoctor.trials.local import LocalPlace
from logdoctor.trials.state import State
from logdoctor.trials.tasks import Outcome, Task, Worker, WorkerLost
from logdoctor.trials.trial_file import Trial
from logdoctor.trials.types import Times
from tests import waiting
from tests.trials.conftest import SERVE, Trials, eval_set, unsplit


def events(folder: Path) -> list[Event]:
    return read_journal(folder / "out" / "journal.jsonl")


def test_split_sets_have_the_scores_of_the_unsplit_run(trials: Trials) -> None:
    sets = [eval_set("a", samples=9), eval_set("b", "slow-0.02", 30), eval_set("c", runs_code=True)]
    expected = unsplit(trials, *sets)
    state = trials.work(trials.trial(*sets))
    assert {name: scored.metrics for name, scored in state.progress.scored.items()} == expected
    assert all(metrics["ordered"] == 1 for metrics in expected.values()) and len(expected) == 3
    assert len(state.progress.parts("b")) > 1  # it was split
    assert state.progress.ended
    shards, seconds = trials.known.measured["b"]
    assert sum(samples for samples, _ in shards) == 30 and all(spent > 0 for _, spent in shards) and seconds
    assert list(trials.memory.iterdir()) == []
    assert not list(trials.folder.glob("logdoctor-trials-*"))


def test_scoring_does_not_wait_for_other_sets_and_holds_no_worker(trials: Trials) -> None:
    """The scoring of the first set ends once the only worker has begun the second one."""
    begun = trials.folder / "begun"
    sets = [eval_set("a", samples=2), eval_set("b", f"flaky-{begun}")]
    script = trials.folder / "score.py"
    script.write_text(
        "import sys, time\nfrom pathlib import Path\n"
        f"while not Path({str(begun)!r}).exists(): time.sleep(0.05)\n"
        "Path(sys.argv[1]).write_text('{\"x\": 1}')"
    )
    sets[0]["score"] = f"{sys.executable} {{here}}/score.py {{out}} {{outputs}}"
    assert set(trials.work(trials.trial(*sets, workers=1)).progress.scored) == {"a", "b"}


def test_a_set_that_always_fails_is_tried_three_times_and_the_others_go_on(trials: Trials) -> None:
    there = trials.folder / "there"
    workers: list[Event] = []

    def told(event: Event) -> None:
        """Let it fail once both workers are there."""
        workers.extend([event] if isinstance(event, Loaded) else [])
        if len(workers) == 2:
            there.touch()

    bad = eval_set("bad", f"bad-1@{there}", splittable=False)
    state = trials.work(trials.trial(eval_set("a"), bad), told=told)
    assert set(state.progress.scored) == {"a"} and set(state.progress.dropped) == {"bad"}
    failures = [one for one in events(trials.folder) if isinstance(one, Failed)]
    assert [one.attempt for one in failures] == [1, 2, 3]
    assert failures[0].why == "by its log; exits with 1" and failures[0].quote.endswith("79.15 GiB total capacity)")
    assert failures[0].worker != failures[1].worker  # not on the worker where it failed
    log = trials.folder / "out" / failures[2].log
    assert "CUDA out of memory" in log.read_text()
    (told,) = [one for one in state.progress.of_sets(state.trial) if one.state == "failed"]
    assert told.quote == failures[0].quote and told.log == failures[2].log


def test_a_failure_that_passes_is_tried_again(trials: Trials) -> None:
    state = trials.work(trials.trial(eval_set("a", f"flaky-{trials.folder}/once", splittable=False)))
    assert set(state.progress.scored) == {"a"}
    assert len([one for one in events(trials.folder) if isinstance(one, Failed)]) == 1


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("pass", "wrote no file {out}"),
        ("open(sys.argv[2], 'w').write('[1]')", "wrote no JSON object of numbers"),
        ("open(sys.argv[2], 'w').write('{\"a\": \"b\"}')", "wrote no JSON object of numbers"),
        ("import os; os.symlink('/etc/passwd', sys.argv[2])", "wrote no file {out}"),
        ("import os; os.mkfifo(sys.argv[2])", "wrote no file {out}"),
        ("import time; time.sleep(36000)", "took more than 1 s"),
    ],
)
def test_a_scoring_that_makes_no_metrics_fails_its_set(trials: Trials, code: str, said: str) -> None:
    (trials.folder / "score.py").write_text(f"import sys\n{code}\n")
    bad = eval_set("a", samples=1, score=f"{sys.executable} {{here}}/score.py {{outputs}} {{out}}")
    state = trials.work(trials.trial(bad, **({"score_seconds": 1.0} if "time" in code else {})))
    assert said in state.progress.dropped["a"].why


def test_what_is_resumed_makes_no_finished_shard_again(trials: Trials) -> None:
    sets = [eval_set("a", samples=40), eval_set("b", "bad-2", splittable=False)]
    first = trials.work(trials.trial(*sets))
    finished = dict(first.progress.finished)
    assert set(first.progress.dropped) == {"b"}
    lost = sorted(finished)[0]
    first.output(lost).unlink()
    changed = sorted(finished)[1]
    first.output(changed).write_bytes(b"something else")
    again = trials.work(None)
    made = Counter(one.shard for one in events(trials.folder) if isinstance(one, Finished))
    ranges = sorted((one.start, one.end) for one in again.progress.parts("a"))
    assert [start for start, _ in ranges] == [0, *(end for _, end in ranges[:-1])]  # gaps alone were made again
    assert all(made[shard] == 1 for shard in finished if shard not in (lost, changed))
    assert again.progress.scored["a"].metrics == first.progress.scored["a"].metrics
    assert len([one for one in events(trials.folder) if isinstance(one, Failed)]) == 6  # `b` was tried anew


def test_two_coordinators_exclude_each_other(trials: Trials) -> None:
    trial = trials.trial(eval_set("a"))
    state = State(trials.folder / "out", trial)
    with pytest.raises(TrialError, match=rf"is run by process {os.getpid()} on .*End that one first"):
        State(trials.folder / "out")
    state.close()
    with pytest.raises(TrialError, match=r"holds a trial already\. Go on with it: logdoctor trials resume"):
        State(trials.folder / "out", trial)
    with pytest.raises(TrialError, match="holds no trial"):
        State(trials.folder)


def test_a_line_that_a_crash_cut_off_counts_as_not_written(trials: Trials) -> None:
    trials.work(trials.trial(eval_set("a")))
    path = trials.folder / "out" / "journal.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"type":"fini')
    assert trials.work(None).progress.scored["a"]
    assert path.read_bytes().startswith(whole)
    path.write_bytes(whole + b"nonsense\n")
    with pytest.raises(TrialError, match="is damaged in line"):
        State(trials.folder / "out")


def test_another_checkpoint_under_the_same_path_is_noticed(trials: Trials) -> None:
    trials.work(trials.trial(eval_set("a"), eval_set("b", "bad-0")))
    (trials.folder / "checkpoint" / "model.safetensors").write_bytes(b"newer")
    with pytest.raises(TrialError, match=r"is another one on .* than what was evaluated so far"):
        trials.work(None)


class Losing(LocalPlace):
    """A place whose workers die with what they do, some times."""

    losses = iter(range(3))

    def worker(self, number: int, over: Callable[[], bool]) -> Worker | None:
        node = super().worker(number, over)
        assert node is not None
        real = node.run

        def run(task: Task) -> Outcome:
            if next(Losing.losses, None) is not None:  # which two workers may ask for at once
                raise WorkerLost("its node died")
            return real(task)

        node.run = run  # type: ignore[method-assign]
        return node


def test_a_lost_worker_costs_no_set(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Losing, "losses", iter(range(3)))
    state = trials.work(trials.trial(eval_set("a"), eval_set("b")), Losing)
    assert set(state.progress.scored) == {"a", "b"}
    assert [one.why for one in events(trials.folder) if isinstance(one, Failed)] == ["its node died"] * 3
    monkeypatch.setattr(Losing, "losses", iter(range(1000)))
    trials.folder = trials.folder / "again"
    trials.folder.mkdir()
    trial = msgspec.structs.replace(state.trial, sets=state.trial.sets[:1])
    assert "6 workers were lost" in trials.work(trial, Losing).progress.dropped["a"].why


class Homeless(LocalPlace):
    """A place where only the second worker finds room for the checkpoint."""

    def worker(self, number: int, over: Callable[[], bool]) -> Worker | None:
        if number == 0 or self.workers == 1:
            raise TrialError("the checkpoint", "has no room on this node", "Make some.")
        return super().worker(number, over)


def test_a_worker_without_room_is_done_without_and_none_is_an_error(trials: Trials) -> None:
    trial = trials.trial(eval_set("a"))
    assert trials.work(trial, Homeless).progress.scored
    trials.folder = trials.folder / "again"
    trials.folder.mkdir()
    with pytest.raises(TrialError, match="has no room on this node"):
        trials.work(msgspec.structs.replace(trial, workers=1), Homeless)


def test_a_command_that_serves_is_started_once_for_a_worker(trials: Trials) -> None:
    sets = [eval_set("a", "slow-0.02", 20), eval_set("b", "bad-1", splittable=False), eval_set("c")]
    expected = unsplit(trials, sets[0], sets[2])
    for one in sets:
        del one["infer"]
    state = trials.work(trials.trial(*sets, serve=SERVE, workers=1))
    assert {name: scored.metrics for name, scored in state.progress.scored.items()} == expected
    failures = [one for one in events(trials.folder) if isinstance(one, Failed)]
    assert [one.why for one in failures] == ["by its log; it went wrong"] * 3
    assert "CUDA out of memory" in failures[0].quote


def test_a_command_that_serves_no_more_is_started_again(trials: Trials) -> None:
    flaky = eval_set("a", f"flaky-{trials.folder}/once", infer="", splittable=False)
    state = trials.work(trials.trial(flaky, serve=SERVE))
    assert set(state.progress.scored) == {"a"}
    (failure,) = [one for one in events(trials.folder) if isinstance(one, Failed)]
    assert failure.why == "exits with 7, and serves no more" or failure.why.endswith("serves no more")


def test_what_takes_too_long_is_ended(trials: Trials) -> None:
    state = trials.work(trials.trial(eval_set("a", f"plain@{trials.folder}/never", 1), shard_seconds=0.5))
    assert state.progress.dropped["a"].why.endswith("took more than 0.5 s")


class Slow(LocalPlace):
    """A place where no shard of more than three samples is made in time."""

    def worker(self, number: int, over: Callable[[], bool]) -> Worker | None:
        node = super().worker(number, over)
        assert node is not None
        real = node.run

        def run(task: Task) -> Outcome:
            if int(task.values["end"]) - int(task.values["start"]) > 3:
                return Outcome(None, 12 * 3600.0, None, b"", "took more than it may")
            return real(task)

        node.run = run  # type: ignore[method-assign]
        return node


def test_a_shard_of_slow_samples_is_cut_smaller_on_its_second_try(trials: Trials) -> None:
    sets = [eval_set("a", samples=12), eval_set("b", samples=24)]
    expected = unsplit(trials, *sets)
    state = trials.work(trials.trial(*sets, workers=1), Slow)
    assert {name: scored.metrics for name, scored in state.progress.scored.items()} == expected
    failures = [(one.shard.set, one.shard.samples) for one in events(trials.folder) if isinstance(one, Failed)]
    assert failures.count(("a", 12)) == failures.count(("b", 24)) == 1 and set(failures) <= {
        ("a", 12),
        ("b", 24),
        ("b", 6),
    }
    assert max(shard.samples for shard in state.progress.finished) <= 3


def test_a_shard_that_hangs_is_not_cut_for_ever(trials: Trials) -> None:
    state = trials.work(trials.trial(eval_set("a", samples=400), workers=1), Slow)
    assert state.progress.dropped["a"].why == "took more than it may"
    failures = [one for one in events(trials.folder) if isinstance(one, Failed)]
    assert [(one.shard.samples, one.attempt) for one in failures[:2]] == [(400, 1), (100, 2)]
    assert failures[-1].attempt == 3


def test_times_are_corrected_by_what_was_measured() -> None:
    prior = Times(2.0, 1.0, 5.0, 3)
    assert corrected(prior, []) == prior
    assert corrected(prior, [(8, 20.0)]) == Times(4.0, 2.0, 5.0, 3)
    assert corrected(Times(2.0, 1.0, 5.0, 0), [(8, 20.0)]) == Times(4.0, 2.0, 5.0, 1)
    assert corrected(Times(0.0, 0.0, 0.0), [(8, 20.0)]) == Times(0.0, 2.5, 0.0, 1)


def test_status_tells_how_far_a_trial_is(trials: Trials) -> None:
    from click.testing import CliRunner

    from logdoctor.cli import cli

    looked = trials.folder / "looked"
    sets = [eval_set("a", f"plain@{looked}", 30, tokens=1), eval_set("b", "bad-0"), eval_set("c")]
    trial = trials.trial(*sets)
    worker = threading.Thread(target=trials.work, args=(trial,))
    worker.start()
    out = str(trials.folder / "out")
    journal = trials.folder / "out" / "journal.jsonl"
    waiting.until(lambda: any(isinstance(one, Started) and one.shard.set == "a" for one in read_journal(journal)))
    waiting.until((trials.folder / "out" / "remaining.json").exists)
    shown = json.loads(CliRunner().invoke(cli, ["trials", "status", out, "--json"]).output)
    looked.touch()
    worker.join()
    assert shown["sets"][0]["state"] == "running" and shown["remaining"] is not None
    table = str(trials.folder / "scores.parquet")
    done = CliRunner().invoke(cli, ["trials", "status", out, "--parquet", table])
    assert "CUDA out of memory" in " ".join(done.output.split()) and "tiny, step 100" in done.output
    import pyarrow.parquet as pq

    rows = pq.read_table(table).to_pylist()
    assert {(row["set"], row["metric"], row["step"]) for row in rows} == {
        (one, name, 100) for one in "ac" for name in ("ordered", "whole", "samples")
    }


def test_a_trial_that_is_read_from_its_folder_is_the_same(trials: Trials) -> None:
    trial = trials.trial(eval_set("a"), judges=[{"name": "j", "per_minute": 6}])
    state = State(trials.folder / "out", trial)
    assert state.trial == trial and isinstance(state.trial, Trial)
    state.close()
