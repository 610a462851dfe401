"""The documentation says what the code does."""

from pathlib import Path

from click.testing import CliRunner

from logdoctor.cli import cli
from logdoctor.web.push.labels import label_map

ROOT = Path(__file__).parents[1]


def test_the_table_of_labels_is_the_default() -> None:
    assert label_map().table().strip() in (ROOT / "docs" / "service.md").read_text(encoding="utf-8")


def test_every_command_is_named_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in cli.commands:
        assert f"logdoctor {name}" in readme, name
        assert name in CliRunner().invoke(cli, ["--help"]).output


def test_pages_that_are_linked_exist() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for part in page.read_text(encoding="utf-8").split("](")[1:]:
            target = part.partition(")")[0].partition("#")[0]
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"
