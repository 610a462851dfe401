"""The tables of vendor knowledge use our words and say the known facts."""

import csv
from pathlib import Path

import pytest

from logdoctor import taxonomy
from logdoctor.rules.load import RuleBook

ROOT = Path(__file__).parents[1]
TABLES = ("xid", "sxid", "nvlink5")


COLUMNS = ("name", "meaning", "reason", "role", "recovery", "fault", "action", "disagreement", "source")


@pytest.mark.parametrize("table", TABLES)
def test_every_row_uses_words_of_the_taxonomy(book: RuleBook, table: str) -> None:
    rows = book.knowledge(table)
    assert len(rows) > 20
    for key, row in rows.items():
        assert row["reason"] in taxonomy.REASONS, key
        assert row["role"] in taxonomy.ROLES, key
        assert row["recovery"] in taxonomy.RECOVERIES, key
        assert row["fault"] in taxonomy.FAULTS, key
        assert row["name"] and row["meaning"] and row["source"], key
        assert (row["role"] == "note") == (row["recovery"] == "none"), key
        assert row["disagreement"] in ("", "gpud laxer than NVIDIA", "gpud stricter than NVIDIA") or table == "xid", key


@pytest.mark.parametrize("table", TABLES)
def test_tables_are_whole(book: RuleBook, table: str) -> None:
    """No row twice, every row with all columns, the source of the facts at the top."""
    text = (ROOT / "rules" / "knowledge" / f"{table}.tsv").read_text(encoding="utf-8")
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert any("gpud" in line and "Apache-2.0" in line for line in comments)
    rows = list(csv.reader(text.splitlines()[len(comments) :], delimiter="\t", quoting=csv.QUOTE_NONE))
    assert rows[0] == [table, *COLUMNS]
    assert {len(row) for row in rows} == {len(rows[0])}
    keys = [key for row in rows[1:] for key in row[0].split(" | ")]
    assert len(set(keys)) == len(keys) and len(book.knowledge(table)) == len(keys)


@pytest.mark.parametrize(
    ("xid", "reason", "role", "fault"),
    [
        ("79", "CUDA Error", "cause", "infrastructure"),
        ("48", "ECC Error", "cause", "infrastructure"),
        ("74", "NVLink Error", "cause", "infrastructure"),
        ("94", "ECC Error", "cause", "infrastructure"),
        ("95", "ECC Error", "cause", "infrastructure"),
        ("119", "CUDA Error", "cause", "infrastructure"),
        ("13", "CUDA Error", "proximate", "unknown"),
        ("31", "CUDA Error", "proximate", "unknown"),
        ("45", "CUDA Error", "note", "nobody"),
        ("63", "ECC Error", "note", "nobody"),
    ],
)
def test_known_facts(book: RuleBook, xid: str, reason: str, role: str, fault: str) -> None:
    row = book.knowledge("xid")[xid]
    assert (row["reason"], row["role"], row["fault"]) == (reason, role, fault)


def test_vendors_disagree_in_places(book: RuleBook) -> None:
    assert any(row["disagreement"] for row in book.knowledge("xid").values())
    assert any(row["disagreement"] for row in book.knowledge("sxid").values())


CODES = ("cuda", "cuda_library", "hip", "nccl_result", "ib_wc", "ib_event", "fi_errno", "errno", "signal")


@pytest.mark.parametrize("table", CODES)
def test_every_row_of_codes_uses_words_of_the_taxonomy(book: RuleBook, table: str) -> None:
    rows = book.knowledge(table)
    assert rows
    for key, row in rows.items():
        assert row["reason"] in taxonomy.REASONS, key
        assert row["role"] in taxonomy.ROLES, key
        assert row["recovery"] in taxonomy.RECOVERIES, key
        assert row["fault"] in taxonomy.FAULTS, key
        assert row["name"] and row["meaning"] and row["source"], key
        assert (row["role"] == "note") == (row["recovery"] == "none"), key
        assert row["suggestion"] or row["role"] == "note", key


@pytest.mark.parametrize(
    ("table", "keys", "reason", "recovery"),
    [
        (
            "cuda",
            ("214", "cudaErrorECCUncorrectable", "CUDA_ERROR_ECC_UNCORRECTABLE"),
            "ECC Error",
            "isolate_and_restart",
        ),
        (
            "cuda",
            ("802", "cudaErrorSystemNotReady", "system not yet initialized"),
            "NVLink Error",
            "isolate_and_restart",
        ),
        ("cuda", ("2", "cudaErrorMemoryAllocation", "out of memory"), "Out of Memory Error", "fix_first"),
        (
            "ib_wc",
            ("12", "IBV_WC_RETRY_EXC_ERR", "transport retry counter exceeded"),
            "NCCL Remote Error",
            "isolate_and_restart",
        ),
        ("errno", ("28", "ENOSPC", "No space left on device"), "OS Error", "fix_first"),
        ("signal", ("7", "135", "SIGBUS", "Bus error"), "OS Error", "fix_first"),
    ],
)
def test_number_symbol_and_text_lead_to_one_row(
    book: RuleBook, table: str, keys: tuple[str, ...], reason: str, recovery: str
) -> None:
    rows = [book.knowledge(table)[key] for key in keys]
    assert all(row is rows[0] for row in rows)
    assert (rows[0]["reason"], rows[0]["recovery"]) == (reason, recovery)
