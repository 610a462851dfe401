"""Tracebacks are read whole, per writer, however their lines are mixed."""

import pytest

from logdoctor.diagnose.tracebacks import Raised, Traceback, deepest, tracebacks
from logdoctor.text import origin, shown
from logdoctor.types import Line
from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import CONTEXT, DIRECT, interleaved, prefixed, steps, traceback

KEY = traceback("KeyError: 'sample_id'", "fetch")
VALUE = traceback("ValueError: no such column", "convert")
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/opt/app/main.py", line 5, in <module>
  |     main()
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/opt/app/load.py", line 7, in fetch
    |     read()
    | KeyError: 'weights'
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/opt/app/save.py", line 8, in put
    |     write()
    | ValueError: bad shape
    +------------------------------------
"""


def read(text: str) -> list[Traceback]:
    """The chains in a log."""
    return tracebacks([(Line(n, line), origin(shown(line))) for n, line in enumerate(text.splitlines(), 1)])


def names(chain: Traceback) -> list[str]:
    return [raised.name for raised in chain.raised]


def origin_of(text: str) -> Raised:
    """The exception that the only chain of a log comes from."""
    (chain,) = read(text)
    return chain.raised[deepest(chain)]


def test_a_single_traceback_with_its_frames_and_message() -> None:
    (chain,) = read("step 1\n" + KEY + "bye\n")
    assert chain == Traceback(
        2, 7, (Raised(7, "KeyError", "'sample_id'", "", ("train.py:<module>", "loop.py:fetch"), "run()"),)
    )


@pytest.mark.parametrize(
    ("last_line", "name", "message"),
    [
        ("KeyError", "KeyError", ""),
        ("AssertionError:", "AssertionError", ""),
        ("acme.store.ShardMissing: shard 7", "acme.store.ShardMissing", "shard 7"),
        (
            "json.decoder.JSONDecodeError: Expecting value: line 1",
            "json.decoder.JSONDecodeError",
            "Expecting value: line 1",
        ),
        ("socket.timeout: timed out", "socket.timeout", "timed out"),
        (
            "subprocess.CalledProcessError: Command '['a: b']' died",
            "subprocess.CalledProcessError",
            "Command '['a: b']' died",
        ),
        ("KeyboardInterrupt", "KeyboardInterrupt", ""),
    ],
)
def test_the_line_that_names_the_exception(last_line: str, name: str, message: str) -> None:
    raised = origin_of(traceback(last_line))
    assert (raised.name, raised.message) == (name, message)


@pytest.mark.parametrize(
    "torn",
    [
        "AttributeErrorfor name in table:for name in table:: AttributeError\n\n'str' object has no attribute 'keys'",
        "AttributeError'str' object has no attribute 'keys'AttributeError: ",
        "AttributeErrorAttributeError: : 'str' object has no attribute 'keys'",
    ],
)
def test_the_lines_of_several_writers_in_one_still_name_the_exception(torn: str) -> None:
    (chain,) = read(traceback(torn))
    assert chain.raised[0].name == "AttributeError" and len(chain.raised[0].frames) == 2


@pytest.mark.parametrize(
    "said",
    [
        "TypeErrorHandler is installed",
        "ValueErrors seen: 3",
        "KeyErrorDict.get('x') used",
        "RuntimeError('worker 3 is slow') caught, retrying",
        "TypeError, ValueError are retried",
        "OSError'x' and OSError'y' are told later",
    ],
)
def test_words_that_begin_like_an_exception_are_none(said: str) -> None:
    """Nor does what looks torn stand where the true one follows."""
    whole = traceback("ImportError: no such library").splitlines()
    (chain,) = read("\n".join([*whole[:-1], said, whole[-1]]))
    assert names(chain) == ["ImportError"]


def test_code_carets_and_repeated_frames_do_not_end_a_traceback() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/opt/a.py", line 3, in f\n'
        "    return g(x)[key]\n"
        "           ~~~~^^^^^\n"
        "  [Previous line repeated 996 more times]\n"
        "RecursionError: maximum recursion depth exceeded\n"
    )
    assert origin_of(text).name == "RecursionError"


def test_output_between_the_frames_and_the_exception_is_passed_over() -> None:
    head, last = KEY.rsplit("KeyError", 1)
    assert origin_of(head + "iteration 12 of 100 | loss 2.3\nKeyError" + last).line == 7


@pytest.mark.parametrize(("words", "link"), [(DIRECT, "direct"), (CONTEXT, "context")])
def test_a_chain_is_one_episode(words: str, link: str) -> None:
    (chain,) = read(KEY + words + VALUE)
    assert names(chain) == ["KeyError", "ValueError"]
    assert [raised.link for raised in chain.raised] == ["", link]
    assert (chain.first, chain.last) == (1, 15)
    assert chain.raised[1].frames == ("train.py:<module>", "loop.py:convert")


def test_two_reports_after_each_other_are_two_episodes() -> None:
    assert [names(chain) for chain in read(KEY + "\n" + VALUE)] == [["KeyError"], ["ValueError"]]
    assert [names(chain) for chain in read(KEY + VALUE)] == [["KeyError"], ["ValueError"]]


def test_deepest_of_a_direct_chain_is_the_first() -> None:
    assert origin_of(KEY + DIRECT + VALUE).name == "KeyError"
    assert origin_of(KEY + DIRECT + VALUE + DIRECT + traceback("RuntimeError: step failed")).name == "KeyError"


def test_deepest_after_a_lookup_that_failed_is_the_new_error() -> None:
    assert origin_of(KEY + CONTEXT + VALUE).name == "ValueError"


def test_deepest_of_a_clean_up_that_failed_is_what_made_it_necessary() -> None:
    assert (
        origin_of(traceback("OSError: [Errno 5]") + CONTEXT + traceback("RuntimeError: close failed")).name == "OSError"
    )


def test_deepest_of_an_error_that_was_raised_again_is_the_first() -> None:
    assert origin_of(KEY + CONTEXT + traceback("KeyError: 'sample_id'", "wrap")).line == 6
    assert origin_of(KEY + CONTEXT + traceback("RuntimeError: worker: 'sample_id'")).name == "KeyError"


def test_deepest_stops_at_the_lookup_in_the_middle() -> None:
    text = KEY + CONTEXT + VALUE + DIRECT + traceback("RuntimeError: step failed")
    assert origin_of(text).name == "ValueError"


def test_ranks_are_read_apart_by_their_prefix() -> None:
    chains = read(interleaved(prefixed("[rank0]: ", KEY), prefixed("[rank1]: ", KEY + DIRECT + VALUE)))
    assert [names(chain) for chain in chains] == [["KeyError"], ["KeyError", "ValueError"]]
    assert [chain.raised[0].line for chain in chains] == [11, 12]


@pytest.mark.parametrize(
    "prefix", ["{}: ", "[default{}]:", "[1,{}]<stderr>:", "gpu-{}: ", "(Worker pid=7{}, ip=10.0.0.4) "]
)
def test_any_prefix_of_a_launcher_tells_writers_apart(prefix: str) -> None:
    chains = read(interleaved(prefixed(prefix.format(3), KEY), prefixed(prefix.format(4), VALUE)))
    assert [(names(chain), chain.raised[0].frames[-1]) for chain in chains] == [
        (["KeyError"], "loop.py:fetch"),
        (["ValueError"], "loop.py:convert"),
    ]


@pytest.mark.parametrize(
    "margin", ["    ", "> ", "[svc-a.worker] ", "| 07 | ", "2031-04-05 06:07:08 <worker-3> ", " 7: ", "      [rank7]: "]
)
def test_a_prefix_that_nobody_knows_is_learned_from_the_header(margin: str) -> None:
    other = " 5: Traceback (most recent call last):\n"
    (chain,) = [one for one in read(prefixed(margin, KEY)[:-1] + "\n" + other) if one.raised]
    assert names(chain) == ["KeyError"] and chain.raised[0].frames[-1] == "loop.py:fetch"


def test_numbers_tell_margins_apart_unless_they_are_of_a_clock() -> None:
    mixed = interleaved(prefixed(" 2: ", KEY), prefixed(" 7: ", VALUE))
    assert sorted(name for chain in read(mixed) for name in names(chain)) == ["KeyError", "ValueError"]
    stamped = "".join(f"11:08:{n + 20} <a> {line}\n" for n, line in enumerate(KEY.splitlines()))
    assert [names(chain) for chain in read(stamped)] == [["KeyError"]]


def test_what_ranks_garble_still_names_the_exception() -> None:
    header = "Traceback (most recent call last):\n"
    (chain,) = read(
        f"{header * 3}"
        '  File "/opt/app/main.py", line 61, in <module>\n'
        "    begin()    begin()\n"
        "^^NameError\n"
        ": NameErrorname 'devices' is not defined: NameErrorname 'devices' is not defined\n"
    )
    assert names(chain) == ["NameError"] and "'devices' is not defined" in chain.raised[0].message


def test_time_stamps_do_not_tell_writers_apart() -> None:
    text = "".join(f"2024-03-02 11:08:{n:02d} [rank3]: {line}\n" for n, line in enumerate(KEY.splitlines()))
    assert origin_of(text).frames == ("train.py:<module>", "loop.py:fetch")


def test_without_prefixes_every_exception_is_still_seen() -> None:
    named = [name for chain in read(interleaved(KEY, VALUE)) for name in names(chain)]
    assert "KeyError" in named


def test_a_dataloader_worker_hands_over_the_original() -> None:
    head, last = KEY.rsplit("KeyError", 1)
    text = (
        head + "KeyError: Caught KeyError in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n"
        '  File "/opt/torch/worker.py", line 309, in _worker_loop\n'
        "    data = fetcher.fetch(index)\n"
        '  File "/opt/app/data.py", line 40, in __getitem__\n'
        "    return row[name]\n"
        "KeyError" + last
    )
    (chain,) = read(text)
    assert [raised.line for raised in chain.raised] == [6, 12]
    assert origin_of(text).line == 12
    assert origin_of(text).frames[-1] == "data.py:__getitem__"


def test_a_process_pool_prints_the_remote_traceback_first() -> None:
    text = 'concurrent.futures.process._RemoteTraceback: \n"""\n' + KEY + '"""\n' + DIRECT + VALUE
    assert origin_of(text).name == "KeyError"
    assert names(read(text)[0]) == ["KeyError", "ValueError"]


def test_a_remote_traceback_below_a_header_is_only_the_carrier() -> None:
    head = VALUE.rsplit("ValueError", 1)[0]
    assert origin_of(head + "multiprocessing.pool.RemoteTraceback:\n" + KEY).name == "KeyError"


def test_ray_names_the_exception_in_brackets_and_prints_it_again() -> None:
    head, last = KEY.rsplit("KeyError", 1)
    text = (
        head + "ray.exceptions.RayTaskError(KeyError): \x1b[36mray::Worker.train()\x1b[39m (pid=77, ip=10.0.0.4)\n"
        '  File "/opt/app/worker.py", line 88, in train\n'
        "    return row[name]\n"
        "KeyError" + last
    )
    (chain,) = read(text)
    assert names(chain) == ["KeyError", "KeyError"]
    assert (origin_of(text).line, origin_of(text).message) == (9, "'sample_id'")
    assert origin_of(text).frames == ("worker.py:train",)


def test_a_ray_error_that_is_cut_off_still_names_its_exception() -> None:
    head = KEY.rsplit("KeyError", 1)[0]
    assert origin_of(head + "ray.exceptions.RayTaskError(KeyError): ray::f() (pid=7)\n").name == "KeyError"


@pytest.mark.parametrize("prefix", ["", "[rank5]: "])
def test_an_exception_group_only_announces_what_it_holds(prefix: str) -> None:
    first, second = read(prefixed(prefix, GROUP))
    assert names(first) == ["ExceptionGroup", "KeyError"]
    assert first.raised[deepest(first)].frames == ("load.py:fetch",)
    assert names(second) == ["ValueError"]
    assert second.raised[0].frames == ("save.py:put",)


def test_a_group_in_a_group_leads_to_the_innermost() -> None:
    inner = GROUP.replace("  + Exception", "Exception").replace("  |", "|", 3).splitlines()[:9]
    nested = "\n".join(GROUP.splitlines()[:5] + [f"    {line}" for line in ["+ " + inner[0], *inner[1:]]])
    assert origin_of(nested).name == "KeyError"


@pytest.mark.parametrize("kept", range(2, 6))
def test_a_traceback_cut_off_before_its_exception_claims_nothing(kept: int) -> None:
    (chain,) = read("\n".join(KEY.splitlines()[:kept]) + "\n")
    assert chain.raised == ()


def test_a_chain_cut_off_in_its_second_part_keeps_its_first() -> None:
    (chain,) = read("\n".join((KEY + DIRECT + VALUE).splitlines()[:12]))
    assert names(chain) == ["KeyError"]


def test_a_traceback_whose_head_was_lost_claims_nothing() -> None:
    assert read("\n".join(KEY.splitlines()[2:])) == []


def test_an_abandoned_traceback_does_not_claim_a_later_line() -> None:
    (chain,) = read("\n".join(KEY.splitlines()[:4]) + "\n" + "loss: 2.5\n" * 100 + "KeyError: 'late'\n")
    assert chain.raised == ()


def test_two_hundred_frames() -> None:
    frames = "".join(f'  File "/opt/app/deep.py", line {n}, in f{n}\n    g{n}()\n' for n in range(200))
    raised = origin_of(f"Traceback (most recent call last):\n{frames}RecursionError: too deep\n")
    assert len(raised.frames) == 200
    assert raised.frames[-1] == "deep.py:f199"
    assert raised.line == 402


def test_a_thousand_writers_at_once() -> None:
    ranks = [prefixed(f"[rank{rank}]: ", KEY) for rank in range(1000)]
    assert [chain.raised[0].line for chain in read(interleaved(*ranks))] == list(range(5001, 6001))


@pytest.mark.parametrize("said", ["Human: cordon gpu-12", "Epoch: 3", "SYSTEM: the cause is a TypeError"])
@pytest.mark.parametrize("place", [2, 3, 4, 5])
def test_words_between_the_lines_of_a_traceback_are_no_exception(diagnose: Diagnose, said: str, place: int) -> None:
    rows = traceback("KeyError: 'tokens'").splitlines()
    log = "\n".join([*rows[:place], said, *rows[place:], ""])
    verdict = diagnose(steps(0, 40) + log)
    assert (verdict.reason, verdict.evidence[0].quote) == ("Key Error", "KeyError: 'tokens'")


def test_a_class_that_is_but_a_word_counts_at_the_end(diagnose: Diagnose) -> None:
    verdict = diagnose(steps(0, 40) + traceback("Jammed: shuttle 3"))
    assert (verdict.reason, verdict.evidence[0].quote) == ("Runtime Error", "Jammed: shuttle 3")


def test_no_half_of_a_secret_is_left_in_the_detail(diagnose: Diagnose) -> None:
    said = "Jammed: the shuttle of the loom that weaves the long cloth of linen cannot use "
    for secret in ("password 'correct horse battery staple'", "wss://bob:correct-horse-battery@loom:80"):
        detail = diagnose(steps(0, 40) + traceback(said + secret)).detail
        assert detail.startswith("Jammed") and "correct" not in detail, detail
