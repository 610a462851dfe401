"""The tables of codes of accelerators other than NVIDIA's use the taxonomy's words, and each code stands once."""

from pathlib import Path

import pytest

from logdoctor import taxonomy
from logdoctor.rules.load import RuleBook

TABLES = (
    "cann",
    "aclret",
    "hcclret",
    "torchnpuerr",
    "synstatus",
    "gaudidfa",
    "nrt",
    "xpu",
    "xlastatus",
)


@pytest.mark.parametrize("table", TABLES)
def test_rows_use_words_of_the_taxonomy(book: RuleBook, table: str) -> None:
    for key, row in book.knowledge(table).items():
        assert row["role"] in taxonomy.ROLES, key
        assert row["recovery"] in taxonomy.RECOVERIES, key
        assert row["fault"] in taxonomy.FAULTS, key
        assert row["name"] and row["meaning"] and row["source"], key
        assert (row["role"] == "note") == (row["recovery"] == "none") == (row["reason"] == ""), key
        assert row["role"] in ("note", "teardown") or row["suggestion"], key


@pytest.mark.parametrize("table", TABLES)
def test_a_code_stands_once(table: str) -> None:
    path = Path(__file__).parents[1] / "rules" / "knowledge" / f"{table}.tsv"
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    keys = [key for row in rows[1:] for key in row[0].split(" | ")]
    assert len(keys) == len(set(keys))
    assert {len(row) for row in rows} == {len(rows[0])}
