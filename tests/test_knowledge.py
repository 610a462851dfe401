"""The tables of vendor knowledge use our words, say the known facts, and are written by `eval/knowledge.py`."""

import csv
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from logdoctor import taxonomy
from logdoctor.rules.load import RuleBook

ROOT = Path(__file__).parents[1]
TABLES = ("xid", "sxid", "nvlink5")


@pytest.fixture(scope="module")
def knowledge() -> ModuleType:
    """The script that writes the tables."""
    spec = importlib.util.spec_from_file_location("knowledge", ROOT / "eval" / "knowledge.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["knowledge"] = module
    spec.loader.exec_module(module)
    return module


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
def test_tables_are_whole(book: RuleBook, knowledge: ModuleType, table: str) -> None:
    """No row twice, every row with all columns, the source of the facts at the top."""
    text = (ROOT / "rules" / "knowledge" / f"{table}.tsv").read_text(encoding="utf-8")
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert any("gpud" in line and "Apache-2.0" in line for line in comments)
    rows = list(csv.reader(text.splitlines()[len(comments) :], delimiter="\t", quoting=csv.QUOTE_NONE))
    assert rows[0] == [table, *knowledge.COLUMNS]
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


XID = (
    "# a comment\n"
    "xid\tnvidia_mnemonic\tnvidia_name\tmeaning_own_words\tnvidia_immediate_action\tfatality_class\torigin_judgement"
    "\tdisagreement\n"
    "79\tMNEMONIC\tFallen off the bus\tThe GPU is gone\tRESTART_BM\tfatal\tbus\t\n"
    "1\tMNEMONIC_1\tUnused\tNo longer used\tCONTACT_SUPPORT\tunused/unknown\tunused\t\n"
    '13\tM13\tException\tA "bad"\taccess\tRESTART_APP\tapplication\tapp\t\n'.replace("\taccess", " access")
)
SXID = (
    "sxid\tname\tclass\tgpud_event\n"
    "20001\tTop\talways-fatal\tFatal\n10001\tHost\tfatal to one\tWarning\n10003\tSoft\tnon-fatal\tFatal\n"
)
NVLINK5 = (
    "xid\tunit\tseverity\tinvestigate\thw_sw\timmediate\n"
    "149\tNETIR/NETIR_INT\tFatal\tCHECK\tHW\tRESET_GPU\n149\tNETIR\tNon-Fatal-less\tLOOK\tSW\tIGNORE\n"
)


def test_tables_are_written_from_sources(knowledge: ModuleType, tmp_path: Path) -> None:
    source, first, second = tmp_path / "source", tmp_path / "first", tmp_path / "second"
    source.mkdir()
    for name, text in (("xid_catalog", XID), ("sxid_catalog", SXID), ("xid_nvlink5_rules", NVLINK5)):
        (source / f"{name}.tsv").write_text(text, encoding="utf-8")
    assert knowledge.main([str(source), str(first)]) == 0
    assert knowledge.main([str(source), str(second)]) == 0
    for table in TABLES:
        assert (first / f"{table}.tsv").read_bytes() == (second / f"{table}.tsv").read_bytes()
    read = {t: {next(iter(row.values())): row for row in knowledge.read_table(first / f"{t}.tsv")} for t in TABLES}
    assert {key: (row["reason"], row["role"], row["name"]) for key, row in read["xid"].items()} == {
        "79": ("CUDA Error", "cause", "Fallen off the bus"),
        "1": ("CUDA Error", "note", "MNEMONIC_1"),
        "13": ("CUDA Error", "proximate", "Exception"),
    }
    assert {key: (row["role"], row["disagreement"]) for key, row in read["sxid"].items()} == {
        "20001": ("cause", ""),
        "10001": ("cause", "gpud laxer than NVIDIA"),
        "10003": ("note", "gpud stricter than NVIDIA"),
    }
    assert set(read["nvlink5"]) == {"NETIR", "NETIR_INT"}


def test_wrong_arguments(knowledge: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert knowledge.main([]) == 2
    assert "SOURCE_FOLDER" in capsys.readouterr().err


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
