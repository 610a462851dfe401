"""An error ended its writer when the writer's rhythm stops; one after which it goes on, or begins anew, did not."""

import pytest

from logdoctor.diagnose.ending import ReportedEnd
from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import steps, traceback

FAULT = traceback("ValueError: 9000 tokens asked for, at most 8192 fit")
REQUESTS = "".join(f'INFO:     10.0.3.7:{50000 + n} - "POST /v1/generate HTTP/1.1" 200 OK\n' for n in range(60))
REFUSED = 'INFO:     10.0.3.7:61000 - "POST /v1/generate HTTP/1.1" {status}\n'
SAMPLES = "".join(f"sample {n} scored {n % 7} of 10\n" for n in range(60))


def logged(report: str, stamp: str = "07-21 10:33:12") -> str:
    """A report as a logger prints it: its prefix before each line."""
    return "".join(f"ERROR {stamp} [handlers.py:41] {line}\n" for line in report.splitlines())


def bar(first: int, last: int) -> str:
    """One line in which a bar was drawn again and again."""
    return "\r".join(f" {n * 100 // 4000}%|#    | {n}/4000 [10:00<50:00, 1.20it/s]" for n in range(first, last)) + "\n"


def test_one_long_bar_that_ends_as_the_last_thing_is_the_end(diagnose: Diagnose) -> None:
    whole = bar(0, 2000) + bar(2000, 4001)
    assert diagnose(whole).outcome == "completed"
    assert diagnose(bar(0, 3999)).outcome == "running"
    assert diagnose(whole + whole).outcome == "running", "of several bars any may be the last"
    assert diagnose(whole + "saving\n" * 3).outcome == "running"
    assert diagnose(whole + "Waiting for 7 other ranks at the barrier\n").outcome == "running"
    stop = "slurmstepd: error: *** STEP 99120.0 ON t01 CANCELLED AT 2026-05-02T16:05:20 ***\n"
    assert diagnose(whole + stop).outcome == "cancelled"
    assert diagnose(whole + "ERROR: failed to save the results\n").outcome == "failed"


def test_a_part_that_finished_successfully_is_not_the_end_of_a_job(diagnose: Diagnose) -> None:
    assert diagnose(SAMPLES + "Finished successfully.\n").outcome == "completed"
    for said in ("Rendezvous completed successfully", "Only 3 of 40 uploads completed successfully"):
        assert diagnose(SAMPLES + said + "\n").outcome != "completed", said


def test_a_network_that_a_job_had_is_lost_by_its_node(diagnose: Diagnose) -> None:
    lost = traceback("OSError: [Errno 101] Network is unreachable")
    assert diagnose(lost).recovery == "fix_first"
    assert diagnose(steps(0, 40) + lost).recovery == "isolate_and_restart"


def test_a_server_beside_a_training_that_is_stopped_stops_no_job(diagnose: Diagnose) -> None:
    stop = "INFO 08-01 21:34:51 [launcher.py:100] [shutdown] API server: shutdown triggered\n"
    assert diagnose(steps(0, 40) + stop + "rollout server listens on port 8002\n").outcome == "running"


def test_a_server_that_answers_after_a_logged_traceback_goes_on(diagnose: Diagnose) -> None:
    assert diagnose(REQUESTS + logged(FAULT) + REFUSED.format(status="422 Unprocessable Entity")).outcome == "running"


def test_an_error_that_is_answered_as_the_fault_of_the_client_is_of_one_request(diagnose: Diagnose) -> None:
    start = "".join(f"INFO route {path} of the server\n" for path in ("/a", "/b", "/c", "/d", "/e", "/f"))
    unknown = "ERROR 05-12 02:47:14 [serving_chat.py:136] the model `a-14b` does not exist, code=404\n"
    for fault in (logged(FAULT), unknown):
        assert diagnose(start + fault + REFUSED.format(status="404 Not Found")).outcome != "failed", fault
        assert diagnose(start + fault + "INFO closing\n" + REFUSED.format(status="404 Not Found")).outcome == "failed"
        probe = 'INFO:     10.0.0.9:50112 - "GET /metrics HTTP/1.1" 404 Not Found\n'
        assert diagnose(start + fault + probe).outcome == "failed", "no client asked for that"


@pytest.mark.parametrize("after", ["", REFUSED.format(status="500 Internal Server Error"), "INFO closing the pool\n"])
def test_one_that_does_not_has_failed(diagnose: Diagnose, after: str) -> None:
    verdict = diagnose(REQUESTS + logged(FAULT) + after)
    assert (verdict.outcome, verdict.reason) == ("failed", "Value Error")


def test_a_traceback_of_python_itself_wants_more_lines_behind_it(diagnose: Diagnose) -> None:
    assert diagnose(SAMPLES + FAULT + "sample 61 scored 3 of 10\n").outcome == "failed"
    assert (
        diagnose(SAMPLES + FAULT + "".join(f"sample {n} scored 3 of 10\n" for n in range(61, 64))).outcome != "failed"
    )


def test_what_was_done_before_the_first_error_shows_what_the_work_is(diagnose: Diagnose) -> None:
    """Programs that are judged crash, the first of them after a few samples of three lines each."""
    tries = [f"problem {n}: compiling\nproblem {n}: running\n{{}}problem {n}: passed\n" for n in range(40)]
    log = "".join(one.format("Segmentation fault\n" if n % 9 == 4 else "") for n, one in enumerate(tries))
    assert diagnose(log).outcome == "unknown"


def test_a_death_that_the_program_itself_reports_is_believed(diagnose: Diagnose) -> None:
    rest = "".join(f"sample {n} scored 3 of 10\n" for n in range(61, 65))
    report = "manager: worker 2 ended with code 1, stopping all\nmanager: stopped\n"
    assert diagnose(SAMPLES + FAULT + rest).outcome != "failed"
    assert diagnose(SAMPLES + FAULT + rest + report).reason == "Value Error"
    assert diagnose(SAMPLES + FAULT + rest + report + rest).outcome != "failed", "it went on after that, too"


def test_a_launcher_that_reports_a_death_is_believed(diagnose: Diagnose) -> None:
    report = "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1) local_rank: 1 (pid: 77)\n"
    assert diagnose(SAMPLES + FAULT + SAMPLES[:200] + report).outcome == "failed"


def test_a_fault_of_a_machine_counts_whatever_follows(diagnose: Diagnose) -> None:
    fault = "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.\n"
    assert diagnose(SAMPLES + fault + SAMPLES[:200]).outcome == "failed"


def test_a_bar_moves_on_after_errors_of_single_samples(diagnose: Diagnose) -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert diagnose(bar(100, 120) + error + bar(120, 140)).outcome == "running"
    assert diagnose(bar(100, 120) + error + bar(119, 120) * 8).outcome == "failed", "drawn again when it died"
    assert diagnose(bar(3900, 4001) + bar(100, 120) + error + bar(120, 140)).outcome == "running", "a bar before it"
    last = "".join(f"Map: {n}/100 [00:{n:02}<00:00]\n" for n in range(60, 100))
    again = last + bar(100, 120) + FAULT + "the last lines were\n" + last + FAULT
    assert diagnose(again).outcome == "failed", "printed again"
    caught = bar(100, 120).rstrip() + traceback(error.strip())
    assert diagnose(bar(3900, 4001) + caught + bar(120, 140)).outcome == "running", "an error in the line of the bar"


def test_a_bar_at_its_end_stalls_nothing(diagnose: Diagnose) -> None:
    late = (
        "2026-03-02 12:40:00.105709: I dso_loader.cc:44] Successfully opened dynamic library libcudnn.so.7\n"
        "slurmstepd: error: *** JOB 77 ON n14 CANCELLED AT 2026-03-04T10:43:31 DUE TO TIME LIMIT ***\n"
    )
    assert diagnose(bar(3990, 4001) + late).outcome == "cancelled"
    assert diagnose(bar(3990, 3999) + late).reason == "Hang"
    beats = "".join(f"barrier: still waiting for rank {n % 7}\n" for n in range(30))
    assert diagnose(bar(3990, 4001) + beats + late).reason == "Hang", "somebody waits"


def test_the_last_of_two_starts_decides(diagnose: Diagnose) -> None:
    start = "Reading configuration from conf/base.yaml\n"
    first = start + traceback("FileNotFoundError: weights/base.bin")
    assert diagnose(first + start + REQUESTS).outcome == "running"
    assert diagnose(first + start + "one more\n").outcome == "failed", "which may be another rank"


@pytest.mark.parametrize(
    "closing",
    [
        "60/60 epochs done, best loss 0.21, weights written to out/last.pt\n",
        "== summary: 5000 of 5000 steps in 71 min ==\n",
        "2026-03-02 11:08:47 - INFO - train - Final results: {'f1': 41.2}\n",
        bar(3990, 4001) + "2026-03-02 12:40:00 INFO server closed\n",
    ],
)
@pytest.mark.parametrize(
    "noise",
    [
        "",
        "Exception in thread reader:\n" + traceback("OSError: handle is closed"),
        "[rank3]: torch.distributed.DistBackendError: NCCL error: remote process exited\n",
    ],
)
def test_what_complains_after_the_work_was_closed_is_noise(diagnose: Diagnose, closing: str, noise: str) -> None:
    assert diagnose(SAMPLES + closing + noise).outcome == "completed"


def test_an_error_of_the_program_after_its_last_step_is_none(diagnose: Diagnose) -> None:
    verdict = diagnose(SAMPLES + "60/60 epochs done\n" + traceback("TypeError: save() takes 2 arguments"))
    assert (verdict.outcome, verdict.reason) == ("failed", "Type Error")
    assert diagnose(SAMPLES + FAULT + "60 of 60 samples done\n").reason == "Value Error", "it may close in order"


def test_a_server_stopped_in_order_is_cancelled(diagnose: Diagnose) -> None:
    assert diagnose(REQUESTS + "INFO:     Application shutdown complete.\n").outcome == "cancelled"


def test_a_child_that_was_told_to_end_is_cancelled(diagnose: Diagnose) -> None:
    end = "Command '['simulate', '--rounds', '99']' died with <Signals.SIGTERM: 15>.\n"
    assert diagnose(steps(0, 40) + end).outcome == "cancelled"


@pytest.mark.parametrize(
    "end",
    [
        "done.",
        "*** Finished!!! ***",
        "Training took 00:34:41.99",
        "2026-03-02 11:08:47 - INFO - Finished evaluation for m-7b on ['math']",
        "Total: 4241, Correct: 2385, Accuracy: 56.24%",
        "**** Final test accuracy: 84.35. ****",
        "LoRA weights saved to out/lora.pt",
        "[root]: Subcommand returned with exitcode=0",
        "wandb: Find logs at: ./wandb/run-1/logs",
        "treinamento concluído com sucesso",
        "Perplexity: 381.967621",
        "GPU Epilog Script v0.30",
    ],
)
def test_the_last_words_of_a_program_tell_that_its_work_is_over(diagnose: Diagnose, end: str) -> None:
    verdict = diagnose(SAMPLES + end + "\n")
    assert (verdict.outcome, verdict.evidence[0].line) == ("completed", 61)
    assert diagnose(SAMPLES + end + "\n" + SAMPLES).outcome != "completed", "not at its end"
    assert diagnose(SAMPLES[:300] + end + "\n" + SAMPLES[300:900] + end + "\n").outcome != "completed", "again"
    assert diagnose(SAMPLES + FAULT + end + "\n").reason == "Value Error", "it may close in order and have failed"


@pytest.mark.parametrize(
    "end",
    [
        "Saved checkpoint of step 500",
        "epoch 3 done",
        "test run failed",
        "Accuracy of this batch: 0.5",
        "loading is done by 8",
    ],
)
def test_words_that_may_come_again_do_not(diagnose: Diagnose, end: str) -> None:
    assert diagnose(SAMPLES + end + "\n").outcome != "completed"


def test_a_program_that_says_that_it_goes_on_without_a_file_does(diagnose: Diagnose) -> None:
    said = "m/base does not appear to have a file named generation_config.json."
    assert diagnose(SAMPLES + f"OSError: {said}\n").reason == "File Not Found Error"
    assert diagnose(SAMPLES + f"Failed to load it: {said} Proceeding without generation config.\n").outcome != "failed"


def test_a_server_whose_requests_are_few_goes_on_where_their_kinds_come_again(diagnose: Diagnose) -> None:
    start = "".join(f"INFO route {path} of the server\n" for path in ("/a", "/b", "/c", "/d", "/e", "/f"))
    one = "INFO received a request {0}\nINFO added request {0}\n" + REFUSED.format(status="{1}")
    fault = logged(FAULT) + REFUSED.format(status="400 Bad Request")
    assert diagnose(start + one.format(1, "200 OK") + fault + one.format(2, "200 OK")).outcome != "failed"
    assert diagnose(start + one.format(1, "200 OK") + fault + one.format(2, "500 Error")).outcome == "failed"


def test_what_was_survived_before_is_survived_again_by_one_that_ends_in_order(diagnose: Diagnose) -> None:
    said = ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete.")
    end = "".join(f"INFO:     {one}\n" for one in said)
    log = REQUESTS + logged(FAULT) + REQUESTS + logged(FAULT)
    assert diagnose(log + REFUSED.format(status="200 OK") + end).outcome == "cancelled"
    assert diagnose(log + end).outcome == "failed", "nothing was answered after it"
    assert diagnose(log + REFUSED.format(status="500 Internal Server Error") + end).outcome == "failed"


def test_a_front_end_that_was_told_to_stop_misses_its_engine(diagnose: Diagnose) -> None:
    stop = "INFO 08-01 21:34:51 [launcher.py:100] [shutdown] API server: shutdown triggered\n"
    dead = traceback("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.")
    end = "INFO:     Application shutdown complete.\n"
    assert diagnose(REQUESTS + stop + dead + end).outcome == "cancelled"
    assert diagnose(REQUESTS + dead + stop + end).outcome == "failed"


def test_steps_alone_refute_the_want_of_steps(diagnose: Diagnose) -> None:
    beats = "".join(f"heartbeat ok: {n} of 16 tasks\n" for n in range(20))
    log = steps(0, 40) + beats + "W0502 checkpoint daemon: no new step since 40, nothing to replicate\n" + beats
    assert diagnose(
        log + "slurmstepd: error: *** STEP 99120.0 ON t01 CANCELLED AT 2026-05-02T16:05:20 ***\n"
    ).reason in ("Hang", "None")


def test_a_parent_that_misses_a_child_because_of_a_ctrl_c_did_not_fail(diagnose: Diagnose) -> None:
    late = traceback("RuntimeError: the core did not come up")
    assert diagnose(SAMPLES + "KeyboardInterrupt\n" + late).outcome == "cancelled"
    assert diagnose(SAMPLES + "KeyboardInterrupt\n" + FAULT).outcome == "failed", "an error of its own"
    assert diagnose(SAMPLES + "KeyboardInterrupt\n" + SAMPLES + late).outcome == "failed", "later"


def test_threads_that_miss_their_peers_before_a_ctrl_c_is_printed_are_no_cause(diagnose: Diagnose) -> None:
    reset = traceback("ConnectionResetError: [Errno 104] Connection reset by peer")
    threads = 3 * f"Exception in thread Thread-1 (_pin_memory_loop):\n{reset}"
    stop = "Keyboard interruption. Exiting from early training\n"
    assert diagnose(SAMPLES + threads + stop).outcome == "cancelled"
    assert diagnose(SAMPLES + reset + stop).outcome == "failed", "the program itself failed"
    assert diagnose(SAMPLES + threads + "closing\nsaving weights\nsaving the table\n" + stop).outcome == "failed", (
        "later"
    )
    assert diagnose(SAMPLES + "Exception in thread Thread-1:\n" + FAULT + stop).outcome == "failed", (
        "an error of its own"
    )


def test_a_death_beside_the_last_words_counts(diagnose: Diagnose) -> None:
    for death in (
        "srun: error: n14: task 3: Exited with exit code 1\n",
        "train.sh: line 4: 4711 Killed                  python train.py\n",
        "ERROR training failed\n",
        "Training aborted by watchdog\n",
    ):
        for log in (SAMPLES + death + "Job finished\n", SAMPLES + "Evaluation finished\n" + death):
            assert diagnose(log).outcome != "completed", log[-120:]
    assert diagnose(SAMPLES + "Evaluation finished\n" + "Terminated\n").outcome != "completed"
    assert diagnose(steps(0, 40) + "Test accuracy: 0.5\n").outcome != "completed", "it trains on"


def test_a_program_that_was_told_to_stop_was_not_told_so_because_another_died(diagnose: Diagnose) -> None:
    told = "[2026-08-02 00:17:43] SIGTERM received. Draining requests and shutting down...\n"
    ended = "Subprocess detokenizer (pid=31379) crashed with exit code -15. Triggering SIGQUIT for cleanup...\n"
    assert diagnose(REQUESTS + told + ended).outcome == "cancelled"
    report = "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 1 (pid: 77)\n"
    assert diagnose(REQUESTS + told + report).outcome == "failed"


def test_what_a_stopped_program_prints_last_is_no_good_end(diagnose: Diagnose) -> None:
    leaked = "resource_tracker: There appear to be 4 leaked semaphore objects to clean up at shutdown\n"
    assert diagnose(bar(3990, 4001) + "KeyboardInterrupt\n" + leaked).outcome == "cancelled"


def test_torchrun_says_that_it_was_told_to_stop(diagnose: Diagnose) -> None:
    said = "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers\n"
    assert diagnose(SAMPLES + said).outcome == "cancelled"


def test_a_warning_of_what_may_happen_is_no_evidence_of_it(diagnose: Diagnose) -> None:
    said = "This can cause fd limit errors like `OSError: [Errno 24] Too many open files`. Consider increasing it"
    assert (
        diagnose(SAMPLES + f"WARNING 01-07 02:29:45 [utils.py:258] Found a limit of 1024. {said}\n").outcome != "failed"
    )


def test_an_exception_that_a_logger_chose_to_print_as_a_warning_was_caught(diagnose: Diagnose) -> None:
    """Unless all that a program prints has that level, nothing follows, or the job is known to have died."""
    rest = "closing\nloading the weights\nreading the table\n"

    def warned(level: str, before: str = SAMPLES, after: str = rest) -> str:
        report = "".join(f"{level} 06-25 16:32:09 [imports.py:408] {line}\n" for line in FAULT.splitlines())
        return before + report + after

    assert diagnose(warned("WARNING")).outcome != "failed"
    assert diagnose(warned("ERROR")).reason == "Value Error"
    assert diagnose(warned("INFO")).reason == "Value Error"
    assert diagnose(warned("WARNING", after="")).reason == "Value Error"
    piped = "".join(f"WARNING 06-25 16:32:09 [out.py:4] {line}\n" for line in SAMPLES.splitlines())
    assert diagnose(warned("WARNING", before=piped)).reason == "Value Error"
    assert diagnose(warned("WARNING"), reported=ReportedEnd(exit_code=1)).reason == "Value Error"


def test_what_another_process_takes_over_is_survived(diagnose: Diagnose) -> None:
    def by(pid: int, text: str) -> str:
        return "".join(f"(train pid={pid}) {line}\n" for line in text.splitlines())

    failed = by(71, SAMPLES + FAULT)
    assert diagnose(failed + by(72, SAMPLES)).outcome != "failed"
    assert diagnose(failed + by(72, SAMPLES[:200])).reason == "Value Error", "too little"
    assert diagnose(failed + by(72, SAMPLES + "worker 2 ended with code 1\n")).reason == "Value Error"


def test_a_verdict_tells_what_the_writers_of_errors_did_next(diagnose: Diagnose) -> None:
    rest = "".join(f"sample {n} scored 3 of 10\n" for n in range(61, 65))
    (caught,) = diagnose(SAMPLES + FAULT + rest + "saving the table\n").courses
    assert (caught.reason, caught.work) == ("Value Error", ("sample <n> scored <n>",))
    assert (caught.lines, caught.work_lines, caught.survived) == (5, 4, "its writer went on as before")
    first, last = diagnose(SAMPLES + FAULT + rest + "saving the table\n" + traceback("KeyError: 'sum'")).courses
    assert (first.survived, last.survived) == ("its writer failed with something else later", "")
    assert (last.reason, last.lines) == ("Key Error", 0)


def test_courses_are_few_however_many_ranks_fail(diagnose: Diagnose) -> None:
    verdict = diagnose("".join(f"[rank{rank}]: ValueError: 9000 tokens asked for\n" for rank in range(64)))
    assert [course.writer for course in verdict.courses] == [f"[rank{rank}]:" for rank in range(16)]
