"""Pictures of every page for the docs, from a demonstration cluster: `python eval/screenshots.py`.

Each page at the widths of a desktop, a tablet and a phone; some in dark mode, too. They go to docs/screenshots/.
"""

import shutil
import tempfile
import time
from pathlib import Path

import httpx
from demo_cluster import remember, run_jobs, serving
from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "screenshots"
WIDTHS = {"desk": 1440, "tablet": 1024, "phone": 390}
DARK = ("incidents", "incident")
JOB = "llm-70b-pretrain"


def pages(url: str) -> dict[str, str]:
    """Return the path of each page by the name of its picture."""
    incident = httpx.get(f"{url}/v1/incidents?job={JOB}").json()["items"][-1]
    lesson = next(one for one in httpx.get(f"{url}/v1/incidents?limit=200").json()["items"] if one["newest"])
    line = incident["newest"]["verdict"]["evidence"][0]["line"]
    return {
        "incidents": "/",
        "incident": f"/incidents/{incident['id']}",
        "correction": f"/verdicts/{lesson['newest']['id']}/correct",
        "log": f"/jobs/{JOB}/attempts/1/streams/main?line={line}",
        "log-compressed": f"/jobs/{JOB}/attempts/1/streams/main?view=compressed",
        "attempts": "/attempts",
        "nodes": "/nodes",
        "node": "/nodes/gpu-12",
        "cordon": "/nodes/gpu-12/cordon",
        "actions": "/actions",
        "rules": "/rules?state=active",
        "rule-try": "/rules/try?line=torch.OutOfMemoryError:+CUDA+out+of+memory",
        "report": "/report?within=quarter",
        "notifications": "/notifications",
    }


def take(browser: Browser, url: str, folder: Path) -> None:
    """Write the pictures into a folder: a window's view, not the whole length of a page."""
    for name, path in pages(url).items():
        for device, width in WIDTHS.items():
            for dark in (False, True) if name in DARK else (False,):
                context = browser.new_context(
                    viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
                )
                page = context.new_page()
                answer = page.goto(url + path)
                if answer is None or answer.status != 200:
                    raise SystemExit(f"{path} answers {answer and answer.status}")
                page.wait_for_timeout(300)
                file = folder / f"{name}-{device}{'-dark' if dark else ''}.jpg"
                page.screenshot(path=file, type="jpeg", quality=72)
                context.close()


def main() -> None:
    """Fill a cluster and take the pictures."""
    folder = Path(tempfile.mkdtemp(prefix="logdoctor-"))
    pictures = folder / "pictures"
    pictures.mkdir()
    try:
        remember(folder / "data", time.time())
        with serving(folder / "data", LOGDOCTOR_FLEET="gpu-[01-64]") as url, sync_playwright() as playwright:
            run_jobs(url)
            chromium = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
            )
            take(browser, url, pictures)
            browser.close()
        shutil.rmtree(FOLDER, ignore_errors=True)
        shutil.copytree(pictures, FOLDER)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
