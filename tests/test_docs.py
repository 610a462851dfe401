"""The documentation says what the code does."""

import re
from pathlib import Path

from click.testing import CliRunner

from logdoctor.cli import cli
from logdoctor.web.push.labels import label_map

ROOT = Path(__file__).parents[1]
ARCHITECTURE = ROOT / "ARCHITECTURE.md"


def test_the_table_of_labels_is_the_default() -> None:
    assert label_map().table().strip() in (ROOT / "docs" / "service.md").read_text(encoding="utf-8")


def test_every_command_is_named_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in cli.commands:
        assert f"logdoctor {name}" in readme, name
        assert name in CliRunner().invoke(cli, ["--help"]).output


def test_paths_that_the_architecture_names_exist() -> None:
    words = re.findall(
        r"`((?:logdoctor|tests|rules|eval|docs|prompts)/[^` ]*)`", ARCHITECTURE.read_text(encoding="utf-8")
    )
    assert len(words) > 60
    assert [word for word in words if not (ROOT / word).exists()] == []


def test_the_architecture_names_every_package() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    parts = [path for path in (ROOT / "logdoctor").iterdir() if (path / "__init__.py").exists()]
    assert [path.name for path in parts if f"`logdoctor/{path.name}/`" not in text] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page: those of its headings, as a reader of Markdown makes them, and its own."""
    text = page.read_text(encoding="utf-8")
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
    return made | set(re.findall(r'<a id="([^"]+)"', text))


def test_pages_and_sections_that_are_linked_exist() -> None:
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for part in page.read_text(encoding="utf-8").split("](")[1:]:
            target, _, anchor = part.partition(")")[0].partition("#")
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"
            linked = page.parent / target if target else page
            if anchor and linked.suffix == ".md":
                assert anchor in anchors(linked), f"{page.name}: {target}#{anchor}"
