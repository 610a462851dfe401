"""The log viewer as a browser gets it: any line of any stream, found, folded and harmless, for those who may see it."""

import re
import threading
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from eval.bench_log import keep
from logdoctor.rules.scanner import Scanner
from logdoctor.service.log_page import LEAD, ROWS
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import End
from logdoctor.store.log.shards import Owned, shard_of
from logdoctor.store.names import Key
from logdoctor.store.schema import shards
from logdoctor.types import Evidence
from logdoctor.web.jobs import downloads
from logdoctor.web.jobs.downloads import disposition
from tests import waiting
from tests.web.conftest import Guarded, Served, local_client, new_service
from tests.web.test_pages import FAULT, HOSTILE, Page, page, publish

URL = "/jobs/j/attempts/1/streams/main"
FAILED = (
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
)
TAKERS = ("filter/megatron/iteration", "filter/torchtitan/progress")
NUMBERED = b"".join(b"line number %d\n" % number for number in range(1, 5001))


def put(service: Service, data: bytes, stream: str = "main", job: str = "j") -> Key:
    """A stream in the archive of an attempt that is not in memory."""
    key, shard = Key(job, 1, stream), shard_of(job, 1)
    with service.records.database.reading() as connection:
        epoch = connection.scalar(sa.select(shards.c.epoch).where(shards.c.shard == shard))
    keep(service.records, service.archive, Owned(shard, epoch), key, [data] if data else [])
    return key


def numbers(found: Page) -> list[int]:
    """The numbers of the rows, of folds the first."""
    ids = [tag.attributes.get("id", "") for tag in found.all("li")]
    return [int(id[1:]) for id in ids if re.fullmatch(r"L\d+", id)]


def row(found: Page, number: int) -> str:
    """The class of a row."""
    return next(tag.attributes["class"] for tag in found.all("li") if tag.attributes.get("id") == f"L{number}")


def ways(found: Page) -> dict[str, str]:
    """Where the page leads, by the words of the link."""
    return {" ".join(words.split()): target for words, target in found.links().items()}


def test_a_line_is_opened_with_the_lines_around_it(client: TestClient, service: Service) -> None:
    put(service, NUMBERED)
    found = page(client, f"{URL}?line=2500")
    assert numbers(found) == list(range(2500 - LEAD, 2500 - LEAD + ROWS + LEAD))[: len(numbers(found))]
    assert "asked" in row(found, 2500) and "asked" not in row(found, 2499)
    assert "line number 2500" in found.text and "5,000 lines" in found.text
    assert ways(found)["Next"] == f"{URL}?from={2500 + ROWS}"
    assert ways(found)["Previous"] == f"{URL}?before={2500 - LEAD}#end"


def test_the_form_leads_to_its_line(client: TestClient, service: Service) -> None:
    put(service, NUMBERED)
    for view in ("", "&view=compressed"):
        sent = client.get(f"{URL}?go=2500{view}", follow_redirects=False)
        there = urlsplit(sent.headers["location"])
        assert sent.status_code == 303 and there.fragment == "L2500" and there.path == urlsplit(URL).path
        assert "line=2500" in there.query and ("view=compressed" in there.query) == bool(view)


def test_a_page_of_long_lines_is_not_heavy_and_misses_none(client: TestClient, service: Service) -> None:
    lines = 900
    put(service, b"".join(b'%d {"a": "<b>%s"}\n' % (number, b"\x01'" * (number % 600)) for number in range(lines)))
    seen: list[int] = []
    target: str | None = URL
    while target:
        found = page(client, target.split("#")[0])
        assert len(found.source) < 160_000 and "so this page shows fewer" in found.text
        seen += numbers(found)
        target = ways(found).get("Next")
        if len(seen) > lines - 300:
            break
    assert seen == list(range(1, len(seen) + 1))
    back = page(client, f"{URL}?before={lines + 1}")
    assert len(back.source) < 160_000 and numbers(back)[-1] == lines and "so this page shows fewer" in back.text
    put(service, NUMBERED, "short")
    assert "shows fewer" not in page(client, URL.replace("main", "short")).text


def test_every_line_is_reached_by_going_on_and_by_going_back(client: TestClient, service: Service) -> None:
    put(service, NUMBERED)
    for name, begin in (("Next", URL), ("Previous", f"{URL}?before=5001")):
        seen: list[int] = []
        target: str | None = begin
        while target:
            found = page(client, target.split("#")[0])
            seen += numbers(found)
            target = ways(found).get(name)
        assert sorted(seen) == list(range(1, 5001))
    assert numbers(page(client, ways(page(client, URL))["Last"].split("#")[0]))[-1] == 5000


def test_a_line_beyond_the_end_says_where_the_end_is(client: TestClient, service: Service) -> None:
    put(service, NUMBERED)
    found = page(client, f"{URL}?line=5001")
    assert "There is no line 5,001: the stream ends at line 5,000" in found.text
    assert numbers(found)[-1] == 5000
    for bad in (
        "line=0",
        "line=x",
        "line=-1",
        "line=1e5",
        f"line={10**16}",
        "open=1",
        "rank=-1",
        "view=x",
        "q=" + "x" * 301,
    ):
        page(client, f"{URL}?{bad}", 400)
    assert numbers(page(client, f"{URL}?line=&q=&rank=&view=raw"))[0] == 1, "empty fields of a form count as not given"


def test_folded_lines_are_counted_by_rule_and_open(client: TestClient, service: Service, scanner: Scanner) -> None:
    rule = next(rule for rule in scanner.book.filters if rule.id == "filter/megatron/iteration")
    taken = str(rule.must_match[0]).encode() + b"\n"
    put(service, b"something of its own\n" + taken * 412 + b"and another thing\n")
    found = page(client, f"{URL}?view=compressed&line=414")
    assert numbers(found) == [1, 2, 414]
    assert "412 lines: filter/megatron/iteration" in found.text and "folded" in row(found, 2)
    inside = page(client, f"{URL}?view=compressed&line=300")
    assert 300 in numbers(inside) and "asked" in row(inside, 300), "the fold bears the anchor of the line within"
    target = next(target for words, target in ways(found).items() if words.startswith("Show"))
    assert target == f"{URL}?view=compressed&line=2&open=2-413#opened"
    opened = page(client, target.split("#")[0])
    assert numbers(opened)[:202] == [1, *range(2, 202), 202], "so many lines at once, the rest is still folded"
    assert "taken" in row(opened, 2) and "folded" in row(opened, 202) and "212 lines" in opened.text
    assert "asked" not in row(opened, 2), "the whole fold was asked for"


def test_an_opened_fold_says_what_took_its_lines_and_closes(
    client: TestClient, service: Service, scanner: Scanner
) -> None:
    rules = [next(rule for rule in scanner.book.filters if rule.id == id) for id in TAKERS]
    lines = [str(rule.must_match[0]).encode() + b"\n" for rule in rules]
    put(service, b"something of its own\n" + lines[0] * 3 + lines[1] * 2 + b"and another thing\n" + lines[0])
    opened = page(client, f"{URL}?view=compressed&line=2&open=2-6")
    assert f"5 lines: {TAKERS[0]} 3, {TAKERS[1]} 2 Hide" in " ".join(opened.text.split())
    target = next(target for words, target in ways(opened).items() if words.startswith("Hide"))
    assert target == f"{URL}?view=compressed&line=2#L2"
    closed = page(client, target.split("#")[0])
    assert numbers(closed) == [1, 2, 7, 8] and "folded" in row(closed, 2)
    assert not [tag for tag in closed.all("li") if tag.attributes.get("id") == "opened"]
    for other in ("", "?view=compressed", "?view=compressed&open=7-7", "?open=2-6"):
        assert 'id="opened"' not in page(client, URL + other).source, "nothing is open there"


def test_evidence_is_marked_and_led_to(client: TestClient, service: Service) -> None:
    put(service, NUMBERED)
    evidence = tuple(Evidence("j/1/main", "main", line, f"line number {line}", "diagnosis/x") for line in (40, 4000))
    stored = publish(service, verdict=msgspec.structs.replace(FAULT, evidence=evidence))
    for view in ("", "view=compressed&"):
        found = page(client, f"{URL}?{view}line=41")
        assert "cited" in row(found, 40) and "cited" not in row(found, 41)
        assert ways(found)["Previous evidence, line 40"].endswith("line=40#L40")
        assert ways(found)["Next evidence, line 4000"].endswith("line=4000#L4000")
        assert ways(found)["ECC Error"] == f"/verdicts/{stored.id}"
        assert ways(page(client, f"{URL}?{view}"))["Evidence, line 40"].endswith("line=40#L40")
        assert "Next evidence, line 4000" in ways(page(client, f"{URL}?{view}line=40"))


def test_words_are_found_marked_and_gone_on_with(client: TestClient, service: Service) -> None:
    put(service, NUMBERED + b"a <b>bold</b> END\n")
    found = page(client, f"{URL}?q=NUMBER+77")
    assert found.all("mark")[0].text == ["number 77"]
    assert "11 lines found in lines 1 to 5,001 of 5,001" in found.text and "No more lines match" in found.text
    assert ways(found)["77"] == f"{URL}?line=77#L77"
    many = page(client, f"{URL}?q=line")
    assert ways(many)["Continue the search from line 101"] == f"{URL}?q=line&from=101"
    assert "100 lines found in lines 101 to 200" in page(client, f"{URL}?q=line&from=101").text
    assert "0 lines found" in page(client, f"{URL}?q=NUMBER&case=1").text
    assert "1 line found" in page(client, f"{URL}?q=%3Cb%3Ebold").text
    assert "2 lines found" in page(client, f"{URL}?q=number+(77%7C78)$&regex=1").text


@pytest.mark.parametrize("pattern", ["(", "a*", "(?=x)y", "a{1000}"])
def test_a_pattern_that_is_refused_says_why(client: TestClient, service: Service, pattern: str) -> None:
    put(service, NUMBERED)
    found = page(client, f"{URL}?regex=1&q={quote(pattern)}")
    assert "attern" in found.text and found.field("q") == pattern
    assert any(tag.attributes.get("role") == "alert" for tag in found.all("p"))


def test_lines_of_a_rank(client: TestClient, service: Service) -> None:
    put(service, b"".join(b"[rank%d]: step %d\n" % (number % 8, number) for number in range(1, 801)))
    put(service, b"[E ProcessGroupNCCL.cpp:915] [Rank 77] NCCL watchdog\n[Rank 7] x\n[Rank 777] x\n", "nccl")
    assert numbers(page(client, "/jobs/j/attempts/1/streams/nccl?rank=77")) == [1]
    found = page(client, f"{URL}?rank=3")
    assert numbers(found) == list(range(3, 801, 8))
    assert "1 line found" in page(client, f"{URL}?rank=3&q=step+11%24&regex=1").text
    assert "0 lines found" in page(client, f"{URL}?rank=4&q=step+11%24&regex=1").text
    assert "0 lines found" in page(client, f"{URL}?rank=99").text


def test_nothing_hostile_works(client: TestClient, service: Service) -> None:
    text = HOSTILE.encode()
    put(
        service,
        b"\xff\xfe\n" + text + b"\n  0%|  |\r 50%|# |\r100%|##|\n" + b"secret\rshown\n" + text * 100_000 + b"\n",
        "main",
    )
    put(service, b"x\n", "<b>&\"'")
    for query in (
        "",
        "line=2",
        "view=compressed",
        "q=script",
        "q=%3Cscript%3E",
        "q=alert&regex=1",
        f"q={quote(HOSTILE[:90])}",
        "from=5",
    ):
        found = page(client, f"{URL}?{query}")
        assert not [tag for tag in found.all("script") if tag.text or not tag.attributes["src"].startswith("/static/")]
    found = page(client, URL)
    assert "\ufffd" in found.text and "100%|##|" in found.text and "redrawn 2 times" in found.text
    assert "redrawn once" in found.text
    assert re.search(r"a part of [\d.]+ MB", found.text), "a line of many MB is cut, and says so"
    assert len(found.source) < 100_000
    assert found.links()["full line"].startswith("/v1/jobs/j/attempts/1/streams/main/log?line=")
    assert client.get(found.links()["full line"]).status_code == 200
    page(client, f"/jobs/j/attempts/1/streams/{quote('<b>&', safe='')}%22'")


def test_a_stream_that_is_being_sent_shows_its_newest_lines(served: Served) -> None:
    with served.client() as client:
        client.post("/v1/jobs/j/attempts/1/streams/main/log?offset=0", content=b"one\ntwo\nthr")
        found = Page(client.get(f"{URL}?follow=1").text)
        assert numbers(found) == [1, 2, 3] and "still being written" in found.text
        assert [tag for tag in found.all("figure") if "data-follow" in tag.attributes]
        client.post("/v1/jobs/j/attempts/1/streams/main/log?offset=11", content=b"ee\nfour\n")
        found = Page(client.get(f"{URL}?follow=1").text)
        assert numbers(found) == [1, 2, 3, 4] and "three" in found.text
        client.post("/v1/jobs/j/attempts/1/end", json={"stream": "main", "exit_code": 0})
        waiting.until(lambda: client.get("/v1/jobs/j/attempts/1").json()["ended"])
        found = Page(client.get(f"{URL}?follow=1").text)
        assert not [tag for tag in found.all("figure") if "data-follow" in tag.attributes]
        assert "still being written" not in found.text


def test_streams_of_the_attempt_are_listed(client: TestClient, service: Service) -> None:
    for stream in ("rank 10", "rank 2", "main"):
        put(service, NUMBERED, stream)
    found = page(client, URL)
    assert "3 streams of this attempt" in found.text
    assert ways(found)["rank 2"] == "/jobs/j/attempts/1/streams/rank%202"
    assert found.text.index("rank 2") < found.text.index("rank 10")


def test_what_is_left_of_a_deleted_log_is_shown(client: TestClient, service: Service) -> None:
    put(service, NUMBERED)
    publish(service)
    service.records.end("j", 1, End("", 1, None, None, time.time()))
    assert service.retention._delete("j", 1, 1.0)
    found = page(client, URL)
    assert "The raw log was deleted" in found.text and "before it" in found.text and "the cause" in found.text
    assert numbers(found) == [1, 2, 3] and "cited" in row(found, 2)
    page(client, "/jobs/j/attempts/1/streams/other")
    page(client, "/jobs/j/attempts/2/streams/main", 404)


def test_unknown_streams_are_not_found(client: TestClient, service: Service) -> None:
    put(service, NUMBERED)
    for url in (
        "/jobs/j/attempts/1/streams/other",
        "/jobs/x/attempts/1/streams/main",
        "/jobs/j/attempts/7/streams/main",
    ):
        page(client, url, 404)
        assert client.get(f"/v1{url}/download").status_code == 404


def test_tokens_bound_to_jobs_see_no_other_log(guarded: Guarded) -> None:
    put(guarded.service, NUMBERED, job="team-a-1")
    put(guarded.service, NUMBERED, job="team-b-1")
    headers = guarded.token("read", prefixes=("team-a-",))
    for job, status in (("team-a-1", 200), ("team-b-1", 404), ("team-b-none", 404)):
        answer = guarded.client.get(f"/jobs/{job}/attempts/1/streams/main", headers=headers)
        assert answer.status_code == status
        answer = guarded.client.get(f"/v1/jobs/{job}/attempts/1/streams/main/download", headers=headers)
        assert answer.status_code == (200 if status == 200 else 403)
    assert guarded.client.get("/jobs/team-a-1/attempts/1/streams/main", follow_redirects=False).status_code == 303
    sender = guarded.token("ingest")
    assert guarded.client.get("/jobs/team-a-1/attempts/1/streams/main", headers=sender).status_code == 403


def test_a_download_is_the_stream_as_it_stood(served: Served) -> None:
    first = NUMBERED * 400
    url = "/v1/jobs/j/attempts/1/streams/main"
    with served.client() as client:
        client.post(f"{url}/log?offset=0", content=first[: 5 << 20])
        with client.stream("GET", f"{url}/download") as answer:
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            assert answer.headers["content-length"] == str(5 << 20)
            assert (
                answer.headers["content-disposition"]
                == "attachment; filename=\"j-1-main.log\"; filename*=UTF-8''j-1-main.log"
            )
            with served.client() as sender:
                sender.post(f"{url}/log?offset={5 << 20}", content=first[5 << 20 : 6 << 20])
            assert answer.read() == first[: 5 << 20]
        assert client.get(f"{url}/download").content == first[: 6 << 20]


def test_downloads_that_are_given_up_make_room(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_PLACES", threading.BoundedSemaphore(4))
    url = "/v1/jobs/j/attempts/1/streams/main"
    with served.client() as client:
        client.post(f"{url}/log?offset=0", content=NUMBERED * 50)

    def is_begun() -> bool:
        with served.client() as client, client.stream("GET", f"{url}/download") as answer:
            return answer.status_code == 200 and bool(next(answer.iter_raw(100)))

    for _ in range(10):
        waiting.until(is_begun)


def test_file_names_are_safe() -> None:
    name = disposition(Key('a"b;c\r\nö', 1, "..x y"))
    assert name == "attachment; filename=\"a_b_c_-1-..x_y.log\"; filename*=UTF-8''a%22b%3Bc%0D%0A%C3%B6-1-..x%20y.log"


def test_a_damaged_archive_is_told(tmp_path: Path, scanner: Scanner) -> None:
    service = new_service(tmp_path / "data", scanner)
    put(service, NUMBERED)
    (path,) = (tmp_path / "data" / "archive").rglob("*.zst")
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with local_client(service) as client:
        assert "damaged" in page(client, URL, 500).text


def test_a_verdict_that_comes_while_the_page_is_made_breaks_nothing(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(service, NUMBERED)
    current = service.records.current

    def superseded(job: str, attempt: int) -> object:
        found = current(job, attempt)
        if found is None:
            publish(service)
        return found

    monkeypatch.setattr(service.records, "current", superseded)
    found = page(client, URL)
    assert current("j", 1) is not None and numbers(found)
    assert any("incident" in words for words in page(client, URL).links())
