"""A real Chromium before the real service. What a page complains of on its console fails the test."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.web.conftest import Running, running_in

WIDTHS = {"desk": 1440, "tablet": 1024, "phone": 390}
"""Widths of windows, in pixels."""
SECONDS = 300.0
"""How long something may take to appear before a test fails."""
expect.set_options(timeout=SECONDS * 1000)
_ALONE = (  # nothing of the browser's own goes out to the network
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program, "no Chromium is installed: run `make parts`, or apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*_ALONE])
        yield browser
        browser.close()


class Person:
    """Somebody at a browser: a window with cookies of its own."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context, self.url = context, url
        self.complaints: list[str] = []
        self.expected: list[str] = []
        """Parts of complaints that belong to the story, such as the status of an answer."""
        self.page = self.open()

    def open(self, path: str = "") -> Page:
        """Another tab, at a page of the service if a path is given."""
        page = self.context.new_page()
        page.set_default_timeout(SECONDS * 1000)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(f"{page.url}: {error}"))
        if path:
            page.goto(self.url + path)
        return page

    def go(self, path: str) -> Page:
        """The first tab, at a page of the service."""
        self.page.goto(self.url + path)
        return self.page

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.location.get('url', '')}: {message.text}")

    def check(self) -> None:
        """No page complained: no script failed, and nothing was kept out by the policy of what may run."""
        unexpected = [one for one in self.complaints if not any(part in one for part in self.expected)]
        assert not unexpected, unexpected


Meet = Callable[..., Person]


@pytest.fixture
def meet(chromium: Browser) -> Iterator[Meet]:
    """Makes people: `meet(url, width=390, scripts=False, dark=True)`; at the end none of their pages has complained."""
    people: list[Person] = []

    def person(url: str, width: int = WIDTHS["desk"], scripts: bool = True, dark: bool = False, **more: Any) -> Person:
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
            has_touch=width < WIDTHS["tablet"],
            **more,
        )
        people.append(Person(context, url))
        return people[-1]

    yield person
    for one in people:
        one.check()
        one.context.close()


class Cluster:
    """A service with jobs that ran on it."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.headers: dict[str, str] = {}

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.running.url

    def post(self, path: str, **body: Any) -> Any:
        """What the API answers."""
        answer = self.running.client.post(path, headers=self.headers, **body)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def get(self, path: str) -> Any:
        """What the API answers."""
        answer = self.running.client.get(path, headers=self.headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def run(self, job: str, log: bytes, attempt: int = 1, exit_code: int = 1, **facts: Any) -> None:
        """A job that wrote this and ended."""
        if facts:
            answer = self.running.client.put(f"/v1/jobs/{job}", json=facts, headers=self.headers)
            assert answer.status_code < 300, answer.text
        place = f"/v1/jobs/{job}/attempts/{attempt}"
        self.post(f"{place}/streams/main/log?offset=0", content=log)
        self.post(f"{place}/end", json={"exit_code": exit_code})


@contextmanager
def cluster_in(folder: Path, **environment: str) -> Iterator[Cluster]:
    """A real process that serves a folder."""
    with running_in(folder, **environment) as running:
        yield Cluster(running.start())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A service without tokens, with nothing on record."""
    with cluster_in(tmp_path / "data") as made:
        yield made


CORPUS = Path(__file__).parents[2] / "eval" / "corpus" / "failures"


def failure(name: str) -> bytes:
    """A log of the corpus."""
    return (CORPUS / f"{name}.log").read_bytes()
