"""Many incidents, and a log larger than 32 bits count: what is large opens like what is small.

eval/bench_pages.py and eval/bench_log.py measure ten thousand incidents and ten gigabytes.
"""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from eval.bench_log import OBJECT, PAGE, settle
from eval.bench_service import fill
from tests.browser.conftest import Meet, cluster_in, failure
from tests.soak import SOAKING

COUNT = 10_000 if SOAKING else 1_000
SIZE = (10 if SOAKING else 5) * 10**9  # bytes


@pytest.mark.more_in_soak
def test_many_incidents(tmp_path: Path, meet: Meet) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    fill(f"sqlite:///{folder / 'logdoctor.db'}", COUNT)
    with cluster_in(folder) as cluster:
        person = meet(cluster.url)
        page = person.go("/?state=all")
        expect(page.get_by_role("link", name=re.compile("^All"))).to_contain_text(f"{COUNT:,}")
        expect(page.locator("#found tr[data-id]")).to_have_count(50)
        weight = page.evaluate(
            "['navigation', 'resource'].flatMap(kind => performance.getEntriesByType(kind))"
            ".reduce((sum, one) => sum + one.transferSize, 0)"
        )
        assert 20_000 < weight < 200_000
        seen = set(page.locator("#found tr[data-id]").evaluate_all("rows => rows.map(row => row.dataset.id)"))
        page.get_by_role("link", name="Older").click()
        expect(page).to_have_url(re.compile("cursor="))
        older = set(page.locator("#found tr[data-id]").evaluate_all("rows => rows.map(row => row.dataset.id)"))
        assert len(older) == 50 and not seen & older
        page.goto(cluster.url + "/?state=all&node=gpu-3")
        expect(page.locator("#found tr[data-id]").first).to_contain_text("gpu-3")
        page.locator("#found th a").first.click()
        expect(page.get_by_role("region", name="Answer")).to_be_visible()


@pytest.mark.more_in_soak
def test_a_log_of_gigabytes(tmp_path: Path, meet: Meet) -> None:
    folder = tmp_path / "data"
    line = (
        b" [2024-03-02 11:08:47] iteration      120/  500000 | consumed samples:       122880 |"
        b" elapsed time per iteration (ms): 2304.8 | learning rate: 1.2E-05 | global batch size:  1024 |"
        b" lm loss: 6.812E+00 | loss scale: 1.0 | grad norm: 2.117 | number of skipped iterations:   0 |"
        b" number of nan iterations:   0 |\n"
    )
    frame = line * ((1 << 20) // len(line))
    folder.mkdir()
    part = frame * (OBJECT // len(frame))
    file = settle(folder, (*[part] * (SIZE // len(part) + 1), failure("inf-028") + b"the last line\n"))
    assert file.offset > SIZE
    with cluster_in(folder) as cluster:
        page = meet(cluster.url).go(PAGE)
        expect(page.locator("li#L1")).to_contain_text("iteration")
        for number in (file.newlines // 2, file.newlines):
            page.locator("input[name=line], input[name=go]").first.fill(str(number))
            page.get_by_role("button", name="Go").click()
            expect(page.locator(f"li#L{number}")).to_be_in_viewport()
        expect(page.locator(f"li#L{file.newlines}")).to_contain_text("the last line")
        page.goto(f"{cluster.url}{PAGE}?line={file.newlines // 2}&view=compressed")
        expect(page.locator("li.folded").first).to_contain_text("filter/")
        page.goto(f"{cluster.url}{PAGE}?from={file.newlines - 200}&q=uncorrectable")
        expect(page.locator("li.hit").first).to_contain_text("uncorrectable ECC error")
