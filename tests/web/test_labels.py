"""Labels name the stream, whatever shipper set them; a wrong mapping or label says what to do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import SettingsError
from logdoctor.store.names import Key, key
from logdoctor.web.push.labels import DEFAULT, SETTING, allowed, label_map
from logdoctor.web.push.pushes import LogEntry, PushLimits, PushRefused, batches

DEFAULT_MAP = label_map()


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ({"job": "train"}, Key("train", 1, "main")),
        ({"job": "varlogs", "slurm_job_id": "4711"}, Key("4711", 1, "main")),
        ({"logdoctor_job": "a", "slurm_job_id": "4711"}, Key("a", 1, "main")),
        ({"slurm.job.id": "4711", "slurm.restart.count": "0"}, Key("4711", 0, "main")),
        ({"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "2"}, Key("4711", 2, "main")),
        ({"service.name": "llama", "rank": "17"}, Key("llama", 1, "17")),
        ({"service_name": "llama", "k8s.pod.name": "llama-0"}, Key("llama", 1, "llama-0")),
        ({"service-name": "llama", "k8s_pod_name": "llama-0"}, Key("llama", 1, "llama-0")),
        ({"job": "j", "filename": "/var/log/x.log"}, Key("j", 1, "var_log_x.log")),
        ({"job": "j", "filename": "/var/log/x.log", "host": "n1"}, Key("j", 1, "n1 var_log_x.log")),
        ({"job": "j", "host.name": "n1", "log.file.path": "/x.log"}, Key("j", 1, "n1 x.log")),
        ({"job": " j ", "logdoctor_job": "  ", "attempt": "007"}, Key("j", 7, "main")),
        ({"job": "j", "logdoctor_stream": "/", "host": "n1"}, Key("j", 1, "n1")),
        ({"job": "a/b\\c\x00\ufffd"}, Key("a_b_c__", 1, "main")),
        ({"job": ".."}, Key("__", 1, "main")),
        ({"service.name": "unknown_service:python", "job": "j"}, Key("j", 1, "main")),
    ],
)
def test_labels_name_the_stream(labels: dict[str, str], wanted: Key) -> None:
    assert DEFAULT_MAP.place(labels) == wanted


def test_a_missing_job_names_the_labels_that_are_there_and_the_setting() -> None:
    with pytest.raises(PushRefused) as caught:
        DEFAULT_MAP.place({"app": "x", "namespace": "y"})
    assert caught.value.code == "no_job"
    assert caught.value.status == 400
    assert "its labels are app, namespace" in str(caught.value)
    assert "logdoctor_job" in caught.value.next_step and SETTING in caught.value.next_step


@pytest.mark.parametrize("labels", [{}, {"job": ""}, {"job": " / "}, {f"l{i}": "x" for i in range(256)}])
def test_the_error_of_a_missing_job_is_short(labels: dict[str, str]) -> None:
    with pytest.raises(PushRefused) as caught:
        DEFAULT_MAP.place(labels)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("value", ["-1", "1.0", "one", "1000000", "9" * 5000, "\u0663", "+1", "1_0"])
def test_an_attempt_that_is_no_number_is_an_error(value: str) -> None:
    with pytest.raises(PushRefused, match=r"attempt .* is not an integer of 0 to 999999") as caught:
        DEFAULT_MAP.place({"job": "j", "attempt": value})
    assert caught.value.code == "bad_attempt"


def test_a_mapping_of_ones_own() -> None:
    mapping = label_map("job = app.kubernetes.io/name, team+app; stream=node")
    assert mapping.place({"team": "nlp", "app": "llama", "job": "no", "node": "n1"}) == Key("nlp llama", 1, "n1")
    assert mapping.place({"app_kubernetes_io_name": "llama", "attempt": "3"}) == Key("llama", 3, "main")
    with pytest.raises(PushRefused, match="no label names the job"):
        mapping.place({"team": "nlp", "job": "no"})


def test_an_empty_setting_is_the_default() -> None:
    assert label_map("") == label_map(DEFAULT) == DEFAULT_MAP


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("jobs=a", "'jobs=a'"),
        ("job", "'job'"),
        ("=a", "'=a'"),
        ("job=a; job=b", "'job' comes twice"),
        ("job=", "'job' has an empty"),
        ("stream=a,,b", "'stream' has an empty"),
        ("stream=a+", "'stream' has an empty"),
        ("attempt=a+b", r"a\+b"),
        ("job=" + "a," * 9000, "too long"),
    ],
)
def test_a_bad_setting_names_the_part(setting: str, part: str) -> None:
    with pytest.raises(SettingsError, match=part) as caught:
        label_map(setting)
    assert str(caught.value).startswith(SETTING)


def test_the_table_lists_the_whole_mapping() -> None:
    table = label_map("stream=a+b,c.d").table().splitlines()
    assert len(table) == 5
    assert table[4] == "| stream | `a+b`, `c_d` | main |"
    assert "`slurm_job_id`" in table[2] and "refused" in table[2]


@given(st.text(max_size=400))
def test_any_value_becomes_an_allowed_name(value: str) -> None:
    name = allowed(value)
    if name:
        key(name, 1, name)  # raises for a name that is not allowed
    assert allowed(name) == name


@given(st.dictionaries(st.sampled_from(["job", "host", "filename", "rank", "pod"]), st.text(min_size=1), min_size=1))
def test_any_place_is_allowed(labels: dict[str, str]) -> None:
    try:
        place = DEFAULT_MAP.place(labels)
    except PushRefused:
        return
    assert key(*place) == place


def test_long_names_stay_different() -> None:
    names = {allowed("x" * 300 + end) for end in ("a", "b")} | {allowed("\u6f22" * 150 + end) for end in ("a", "b")}
    assert len(names) == 4
    assert all(len(name) <= 200 for name in names)
    assert allowed("x" * 200) == "x" * 200


def entry(text: str, ns: int = 1, **labels: str) -> LogEntry:
    return LogEntry(labels, ns, text.encode())


def test_gathering_keeps_the_order_within_a_stream() -> None:
    entries = [
        entry("a", 3, job="j", trace="1"),
        entry("b", 2, job="j", trace="2"),
        entry("x", 9, job="k"),
        entry("c", 5, job="j", trace="1", user="kim"),
    ]
    gathered = DEFAULT_MAP.gather(batches(entries, PushLimits()))
    assert [(p.key.job, p.batch.lines) for p in gathered.placed] == [("j", b"a\nb\nc\n"), ("k", b"x\n")]
    first = gathered.placed[0].batch
    assert (first.first_ns, first.last_ns, first.entries) == (2, 5, 3)
    assert first.labels == {"job": "j"}
    assert first.facts == {"user": "kim"}
    assert (gathered.rejected, gathered.refusal) == (0, None)


def test_what_has_no_place_is_counted_and_costs_the_others_nothing() -> None:
    entries = [entry("a", app="x"), entry("b", app="x"), entry("c", job="j"), entry("d", job="j", attempt="no")]
    gathered = DEFAULT_MAP.gather(batches(entries, PushLimits()))
    assert [p.batch.lines for p in gathered.placed] == [b"c\n"]
    assert gathered.rejected == 3
    assert gathered.refusal is not None and gathered.refusal.code == "no_job"


def test_the_digest_tells_pushes_apart_and_knows_a_retry() -> None:
    def digest(*entries: LogEntry) -> str:
        return DEFAULT_MAP.gather(batches(entries, PushLimits())).placed[0].batch.digest

    pushes = [
        (entry("a", 1, job="j"),),
        (entry("a", 2, job="j"),),
        (entry("a", 1, job="j", host="n"),),
        (entry("a", 1, job="j"), entry("", 1, job="j")),
        (entry("a\n", 1, job="j"),),
        (entry("a", 1, job="j"), entry("a", 1, job="j")),
        (entry("a", 1, job="j"), entry("a", 1, job="j", trace="2")),
        (entry("a", 1, job="j", trace="2"), entry("a", 1, job="j")),
    ]
    assert len({digest(*push) for push in pushes}) == len(pushes)
    assert digest(entry("a", 1, job="j", host="n")) == digest(LogEntry({"host": "n", "job": "j"}, 1, b"a"))


def test_one_newline_ends_an_entry() -> None:
    texts = ["", "a", "b\n", "c\n\n", "d\r\n", "e\nf", "g\r"]
    (batch,) = batches([entry(text) for text in texts], PushLimits())
    assert batch.lines == b"\na\nb\nc\nd\r\ne\nf\ng\r\n"
    assert batch.entries == len(texts)


@pytest.mark.parametrize(
    ("entries", "limits"),
    [
        ([entry("a")] * 3, PushLimits(entries=2)),
        ([entry("abc")], PushLimits(entry_bytes=2)),
        ([entry("a", a="1", b="2"), entry("a", a="2", b="2")], PushLimits(labels_in_all=3)),
    ],
)
def test_limits_of_a_push(entries: list[LogEntry], limits: PushLimits) -> None:
    with pytest.raises(PushRefused) as caught:
        batches(entries, limits)
    assert caught.value.status == 413
