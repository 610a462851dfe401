"""Steps, losses, throughput, stamps and placements are read from metric lines, the same for any chunking."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.compress import progress
from logdoctor.compress.cut import newlines_of
from logdoctor.compress.filter import compress
from logdoctor.compress.progress import LOOK_BACK
from logdoctor.diagnose.decide import diagnose
from logdoctor.learning.filters.metrics import metrics
from logdoctor.rules.scanner import Scanner
from logdoctor.text import seconds_of
from logdoctor.types import Progress, Record, Segment
from logdoctor.words.phrases import progress as progress_in_words
from tests.compress.records import content, recorded
from tests.rules.learned import KIND, learned_rule

NANOTRON = (
    "{stamp}[INFO|DP=0|PP=0|TP=0|ip-10-1-1-1]: iteration: {step} / {total} | consumed_tokens: 4.19M | "
    "time_per_iteration_ms: 2.1K | tokens_per_sec: 489K | grad_norm: 1.2 | lm_loss: {loss} | lr: 3e-05 | "
    "model_tflops_per_gpu: 151 | hardware_tflops_per_gpu: 151"
)
MEGATRON = (
    "{stamp}iteration {step}/ {total} | consumed samples: 1024 | elapsed time per iteration (ms): 2270.9 | "
    "throughput per GPU (TFLOP/s/GPU): 402.1 | learning rate: 9.8E-05 | global batch size: 1024 | "
    "lm loss: {loss} | loss scale: 1.0 | grad norm: 0.4 |"
)
PLACED = "2024-03-02 11:08:47 | INFO | fairseq.distributed.utils | initialized host {node} as rank {rank}"
MEGATRON_RULE, NANOTRON_RULE = "filter/megatron/iteration", "filter/nanotron/progress"


def megatron(step: int, loss: str = "2.5E+00", total: int = 9000, stamp: str = "") -> str:
    return MEGATRON.format(step=step, loss=loss, total=total, stamp=stamp)


def record_of(lines: list[str], scanner: Scanner, block: int = 1 << 20) -> Record:
    data = "\n".join(lines).encode() + b"\n"
    return recorded((data[i : i + block] for i in range(0, len(data), block)), scanner, block)


def test_values_are_read_with_their_lines(scanner: Scanner) -> None:
    record = record_of(["odd", megatron(1, "1.5E+00"), "odd", megatron(2, "nan"), megatron(3, "inf")], scanner)
    readings = record.progress[MEGATRON_RULE]
    assert readings.lines.tolist() == [2, 4, 5]
    assert readings.steps.tolist() == [1.0, 2.0, 3.0]
    assert readings.losses.tolist() == [1.5, math.inf, math.inf]
    assert readings.rates.tolist() == [402.1] * 3
    assert record.total == 9000
    assert [(number, text.decode()) for number, text in content(record)["texts"]] == [
        (2, megatron(1, "1.5E+00")),
        (4, megatron(2, "nan")),
        (5, megatron(3, "inf")),
    ]


@pytest.mark.parametrize("block", [70, 1 << 20])
@pytest.mark.parametrize(
    "line",
    [
        "update {step} of 60 :: cross-entropy {loss}",
        "2026-11-27 12:00:05 [{step}/60] loss={loss}",
        "it={step} | ce={loss}",
        "global_step={step} nll={loss}",
    ],
)
def test_steps_of_plain_loops_are_read(scanner: Scanner, block: int, line: str) -> None:
    record = record_of([line.format(step=step, loss=3 - step / 50) for step in range(1, 38)], scanner, block)
    (readings,) = record.progress.values()
    assert readings.steps.tolist() == list(range(1, 38))
    assert readings.losses.tolist() == [3 - step / 50 for step in range(1, 38)]


@pytest.mark.parametrize("block", [150, 1 << 20])
def test_a_bar_of_one_part_is_no_step(scanner: Scanner, block: int) -> None:
    bar = "{name}{share:3d}%|#####     | {step}/{total} [00:{step:02d}<00:30,  1.00s/it]"
    lines = [bar.format(name="", share=step, step=step, total=60) for step in range(1, 38)]
    parts = [bar.format(name=name, share=100, step=1, total=1) for name in ("Writing model shards: ", "Any part: ", "")]
    verdict = diagnose([record_of([*lines, *parts], scanner, block)], scanner.book)
    assert (verdict.progress.step, verdict.progress.total) == (37, 60)


def test_a_value_that_is_not_there_is_nan(scanner: Scanner) -> None:
    bar = " 12%|#2        | 120/1000 [00:30<03:40,  4.00it/s]"
    readings = record_of([bar], scanner).progress["filter/tqdm/progress"]
    assert readings.steps.tolist() == [120.0]
    assert np.isnan(readings.losses).all()


def test_of_a_redrawn_bar_the_last_state_counts(scanner: Scanner) -> None:
    bar = "\r".join(f" {i}%|#         | {i}/100 [00:{i:02d}<03:40,  1.00it/s]" for i in range(10, 40)) + "\r"
    for block in (50, 1 << 20):
        record = record_of([bar], scanner, block)
        assert record.progress["filter/tqdm/progress"].steps.tolist() == [39.0]
        assert record.spans["filter/tqdm/progress"][0].text.startswith(" 39%|")


@pytest.mark.parametrize("block", [1, 150, 700, 1 << 20])
def test_the_total_is_the_last_one_in_the_log(scanner: Scanner, block: int) -> None:
    other = NANOTRON.format(step=1, total=77, loss="2.0", stamp="")
    assert set(record_of([other], scanner).progress) == {NANOTRON_RULE}
    assert record_of([other, megatron(2)], scanner, block).total == 9000
    assert record_of([megatron(2), other], scanner, block).total == 77


@pytest.mark.parametrize("block", [1, 150, 1 << 20])
def test_a_rank_stays_where_it_was_placed_first(scanner: Scanner, block: int) -> None:
    lines = [PLACED.format(node=node, rank=rank) for node, rank in (("gpu-7", 0), ("gpu-8", 1), ("gpu-9", 0))]
    assert record_of(lines, scanner, block).placements == {0: "gpu-7", 1: "gpu-8"}


@pytest.mark.parametrize("block", [1, 90, 1 << 20])
def test_an_address_stays_with_the_node_that_named_it_first(scanner: Scanner, block: int) -> None:
    line = "{0}:81:81 [0] NCCL INFO Bootstrap : Using bond0:{1}<0>"
    lines = [line.format(*pair) for pair in (("gpu-01", "10.0.0.1"), ("gpu-02", "10.0.0.2"), ("gpu-03", "10.0.0.1"))]
    assert record_of(lines, scanner, block).aliases == {"10.0.0.1": "gpu-01", "10.0.0.2": "gpu-02"}


@pytest.mark.parametrize("block", [1, 150, 1 << 20])
def test_series_stand_in_one_order(scanner: Scanner, block: int) -> None:
    lines = [NANOTRON.format(step=1, total=77, loss="2.0", stamp=""), megatron(1)]
    names = [list(record_of(some, scanner, block).progress) for some in (lines, lines[::-1])]
    assert names == [[MEGATRON_RULE, NANOTRON_RULE]] * 2


@pytest.mark.parametrize("block", [1, 100, 333, 1 << 20])
@pytest.mark.parametrize("stamp", ["2024-03-02 11:08:47 odd", "\x1b[1m2024-03-02\x1b[0m 11:08:47 odd"])
def test_a_stamp_a_few_lines_before_gives_the_time(scanner: Scanner, block: int, stamp: str) -> None:
    for distance, near in ((0, True), (1, True), (LOOK_BACK - 1, True), (LOOK_BACK, False)):
        gap = ["odd"] * (distance - 1)
        before = ["odd"] * 60  # so that numbers in the stream differ from places in a segment
        lines = [*before, *([stamp, *gap] if distance else []), megatron(1, stamp="" if distance else stamp[:-3])]
        first, last = record_of(lines, scanner, block).spans[MEGATRON_RULE]
        assert first == last
        assert first.line == len(lines)
        assert first.time == (seconds_of("2024-03-02 11:08:47") if near else None)


@pytest.mark.parametrize("block", [1, 5000, 1 << 20])
def test_a_stamp_at_the_start_of_a_very_long_line_gives_the_time(scanner: Scanner, block: int) -> None:
    lines = ["odd"] * 50 + ["2024-03-02 11:08:47 " + "x" * 20_000, megatron(1)]
    assert record_of(lines, scanner, block).spans[MEGATRON_RULE][0].time == seconds_of("2024-03-02 11:08:47")


def test_milestones_are_the_first_and_the_last_metric_line(scanner: Scanner) -> None:
    lines = [megatron(i, stamp=f"[2024-03-02 11:08:{i:02d}] ") for i in range(10, 50)]
    for block in (400, 1 << 20):
        first, last = record_of(["odd", *lines, "odd"], scanner, block).spans[MEGATRON_RULE]
        assert (first.line, first.text) == (2, lines[0])
        assert (last.line, last.text) == (41, lines[-1])
        assert (first.time, last.time) == (seconds_of(lines[0]), seconds_of(lines[-1]))
        assert last.time is not None and first.time is not None and last.time - first.time == 39


@given(
    sizes=st.lists(st.integers(0, 400), min_size=50, max_size=80),
    block=st.integers(1, 20_000),
    dense=st.integers(1, 9000),
)
def test_property_sampling_is_the_same_for_any_chunking(
    scanner: Scanner, sizes: list[int], block: int, dense: int
) -> None:
    lines = [megatron(i, stamp="." * size) if size % 3 else "odd" * size for i, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "_DENSE_BYTES", dense)
        patch.setattr(progress, "_GRID", 512)
        assert content(record_of(lines, scanner, block)) == content(record_of(lines, scanner))


def test_sampling_reads_all_at_the_beginning_and_ever_less_behind(
    scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_DENSE_BYTES", 1 << 16)
    lines = [megatron(i) for i in range(8000)]
    width = len(lines[5000]) + 1
    dense = (1 << 16) // width
    read = record_of(lines, scanner).progress[MEGATRON_RULE].lines
    assert set(range(1, dense)) <= set(read.tolist())
    per_doubling = [
        int(((read * width >= begin) & (read * width < 2 * begin)).sum()) for begin in (1 << 16, 1 << 18, 1 << 20)
    ]
    assert min(per_doubling) > 64
    assert max(per_doubling) < 2 * min(per_doubling)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"1.5E-3", 0.0015),
        (b"1,024", 1024.0),
        (b"nan", math.inf),
        (b"-inf", math.inf),
        (b"1e999", math.inf),
        (b"e", math.nan),
        (b"", math.nan),
    ],
)
def test_numbers(text: bytes | None, number: float) -> None:
    assert progress._number(text) == pytest.approx(number, nan_ok=True)


def test_huge_numbers_do_no_harm(scanner: Scanner) -> None:
    lines = [MEGATRON.format(step="9" * 500, total="9" * 500, loss="1", stamp=""), PLACED.format(node="n1", rank=9**9)]
    record = record_of(lines, scanner)
    assert record.progress[MEGATRON_RULE].steps.tolist() == [math.inf]
    assert record.total == 10**18


MXNET = "Epoch[{step}] Batch [0-20]\tSpeed: {rate} samples/sec\taccuracy={accuracy}"


@pytest.mark.parametrize("block", [1, 40, 150, 1 << 20])
def test_what_was_said_last_of_each_number_is_shown(scanner: Scanner, block: int) -> None:
    lines = [
        MXNET.format(step=3, rate=211.5, accuracy=0.25),
        megatron(7, "2.5E+00"),
        MXNET.format(step=4, rate=212.5, accuracy="nan"),
        "nothing of that kind",
    ]
    assert record_of(lines, scanner, block).shown == Progress(4, 9000, 2.5, 212.5, 3, accuracy=0.25)
    assert record_of(lines[3:], scanner, block).shown == Progress()


def test_a_verdict_tells_how_exact_the_model_was(scanner: Scanner) -> None:
    verdict = diagnose([record_of([MXNET.format(step=3, rate=211.5, accuracy=0.25)] * 3, scanner)], scanner.book)
    so_far = verdict.progress
    assert (so_far.step, so_far.throughput, so_far.accuracy) == (3, 211.5, 0.25)
    assert progress_in_words(so_far) == "step 3, throughput 211.5, accuracy 0.25"


def test_what_a_learned_rule_reads_is_shown_when_no_other_does(scanner: Scanner) -> None:
    lines = [f"gizmo batch [{n}] glows at {n / 2} images/s, accuracy={n / 64}" for n in range(8, 24)]
    where = [("main", number, line) for number, line in enumerate(lines, 1)]
    rule = learned_rule(r"^gizmo batch \[\d+\] glows at [\d.]+ images/s, accuracy=[\d.]+$", metrics=metrics(where))
    verdict = diagnose([record_of(lines, scanner.learning(KIND, (rule,)))], scanner.book)
    so_far = verdict.progress
    assert (so_far.step, so_far.throughput, so_far.accuracy, so_far.line) == (23, 11.5, 23 / 64, 16)
    assert diagnose([record_of(lines, scanner)], scanner.book).progress == Progress()


@given(st.data())
def test_property_lines_that_differ_in_digits_are_read_as_each_alone(scanner: Scanner, data: st.DataObject) -> None:
    book = scanner.book
    number = data.draw(st.sampled_from([*book.metrics]))
    examples = [line for line in book.filters[number].must_match if any(map(str.isdigit, line))] or ["step 1"]
    digits = st.integers(0, 9).map(str)
    drawn = st.sampled_from(examples).flatmap(
        lambda line: st.lists(digits, min_size=len(line), max_size=len(line)).map(
            lambda some: "".join(new if old.isdigit() else old for old, new in zip(line, some, strict=True))
        )
    )
    lines = [line.replace("\n", " ").encode() for line in data.draw(st.lists(drawn, min_size=1, max_size=8))]
    text = b"\n".join(lines) + b"\n"
    residual = compress(Segment("main", text, 0, 1, newlines_of(text)), scanner)
    columns = progress._columns(residual, book.metrics[number], np.arange(len(lines)))
    for name, column in columns.items():
        for line, (begin, end) in zip(lines, column.tolist(), strict=True):
            shown = line.rstrip(b"\r").rsplit(b"\r", 1)[-1]
            found = [match for one in book.metrics[number] if name in one.groupindex and (match := one.search(shown))]
            values = [match[name] for match in found if match[name] is not None]
            assert (text[begin:end] if begin >= 0 else None) == (values[-1] if values else None)


@given(st.lists(st.from_regex(rb"-?[0-9]{0,18}[.,]?[0-9]{0,4}(?:e-?[0-9])?|nan|inf|[a-z0-9._]{1,20}", fullmatch=True)))
def test_property_numbers_are_read_together_as_each_alone(values: list[bytes]) -> None:
    ends = np.cumsum([len(value) for value in values], dtype=np.int64)
    spans = np.stack((ends - np.array([len(value) for value in values], np.int64), ends), axis=1)
    together = progress._numbers(b"".join(values), {"loss": spans}, ("step", "loss"), len(values))
    assert list(map(repr, together["loss"].tolist())) == [repr(progress._number(value)) for value in values]
    assert np.isnan(together["step"]).all()
