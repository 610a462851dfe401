"""Write `rules/knowledge/{xid,sxid,nvlink5}.tsv` from a folder with the collected vendor tables.

    python eval/knowledge.py SOURCE_FOLDER [TARGET_FOLDER]

The sources hold facts (numbers, names, vendor actions); their meaning for a training job - reason, role, recovery,
fault - is decided here. The same input gives the same bytes.
"""

import csv
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

Row = dict[str, str]

COLUMNS = ("name", "meaning", "reason", "role", "recovery", "fault", "action", "disagreement", "source")

XID_SOURCE = "NVIDIA Xid catalogue (sheet of 2025-10-29), gpud"
SXID_SOURCE = "NVIDIA Fabric Manager user guide (SXid), gpud"
NVLINK5_SOURCE = "NVIDIA Xid catalogue, NVLink5 rules (sheet of 2025-10-29), gpud"
FACTS = (
    "Facts (numbers, names, vendor actions) from leptonai/gpud @4a8de33a (Apache-2.0),"
    " components/accelerator/nvidia/{xid,sxid}, after NVIDIA's public documents;"
)
OURS = "meaning, reason, role, recovery and fault are our own words and judgement. Written by eval/knowledge.py."

MEMORY = frozenset({48, 63, 64, 92, 94, 95, 140, 156, 157, 160, 161, 168, 171, 172})
NVLINK = frozenset({74, *range(144, 151), 155, 166, 170})
CAUSES = frozenset(
    {46, 48, 54, 62, 64, 74, 78, 79, 94, 95, 110, 119, 120, 123, 140, 143}
    | {*range(144, 152), 155, 158, 167, 169, 171, 172, 173}
)
PROXIMATE_DRIVER = frozenset({38, 44, 61, 109, 136, 163, 166, 170})
NOTES = frozenset({45, 63, 108, 121, 122, 124, 125, 137, 141, 142, 154, 156, 159, 168})


def read_table(path: Path) -> list[Row]:
    """Return the rows of a tab-separated file with `#` comments, in their order."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = (line for line in file if not line.startswith("#"))
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def xid_reason(xid: int) -> str:
    """Return the taxonomy's name for what an Xid reports."""
    if xid in MEMORY:
        return "ECC Error"
    return "NVLink Error" if xid in NVLINK or xid in (136, 137, 108) else "CUDA Error"


def xid_role(xid: int, fatality: str, origin: str) -> str:
    """Return an Xid line's role: hardware and driver faults are causes, an application's are proximate."""
    if xid in CAUSES:
        return "cause"
    if xid in NOTES or origin in ("video", "unused") or fatality.startswith(("unused", "informational")):
        return "note"
    if xid in PROXIMATE_DRIVER or fatality.startswith(("application", "disputed")):
        return "proximate"
    return "cause" if fatality.startswith("fatal") else "note"


def xid_fault(origin: str, role: str) -> str:
    """Return who has to act on an Xid."""
    if role == "note":
        return "nobody"
    return "unknown" if origin == "app" else "infrastructure"


def xid_row(source: Row) -> Row:
    """Return one row of the Xid table."""
    xid, origin = int(source["xid"]), source["origin_judgement"]
    role = xid_role(xid, source["fatality_class"], origin)
    return {
        "xid": str(xid),
        "name": source["nvidia_name"] if source["nvidia_name"] != "Unused" else source["nvidia_mnemonic"],
        "meaning": source["meaning_own_words"],
        "reason": xid_reason(xid),
        "role": role,
        "recovery": "none" if role == "note" else "isolate_and_restart",
        "fault": xid_fault(origin, role),
        "action": source["nvidia_immediate_action"],
        "disagreement": source["disagreement"],
        "source": XID_SOURCE,
    }


def sxid_disagreement(fatal: bool, gpud_event: str) -> str:
    """Return how gpud's severity differs from NVIDIA's class, in the Xid table's words."""
    if fatal == (gpud_event == "Fatal"):
        return ""
    return "gpud laxer than NVIDIA" if fatal else "gpud stricter than NVIDIA"


def sxid_row(source: Row) -> Row:
    """Return one row of the SXid (NVSwitch) table."""
    always = source["class"].startswith("always-fatal")
    fatal = always or source["class"].startswith("fatal")
    cause = fatal and source["sxid"] not in ("10004", "10005")
    meaning = {True: "NVSwitch fault that stops the whole fabric", False: "NVSwitch fault of a link or partition"}[
        always
    ]
    return {
        "sxid": source["sxid"],
        "name": source["name"],
        "meaning": meaning if fatal else "NVSwitch event that was corrected or handled",
        "reason": "NVLink Error",
        "role": "cause" if cause else "note",
        "recovery": "isolate_and_restart" if cause else "none",
        "fault": "infrastructure" if cause else "nobody",
        "action": {True: "RESTART_HOST", False: "RESTART_VM"}[always] if fatal else "IGNORE",
        "disagreement": sxid_disagreement(fatal, source["gpud_event"]),
        "source": SXID_SOURCE,
    }


def units(source: Row) -> Iterator[str]:
    """Yield the unit names of an NVLink5 rule; a slash separates old and new driver names."""
    yield from source["unit"].split("/")


def nvlink5_row(unit: str, rules: list[Row]) -> Row:
    """Return one row of the NVLink5 table: all that a fatal line of this unit may mean.

    The sub-code is in bits 20-25 of the first hexadecimal word, which a table keyed by text cannot read, so the
    investigations of all sub-codes are listed.
    """
    fatal = [rule for rule in rules if "Fatal" in rule["severity"]]
    investigate = sorted({rule["investigate"] for rule in fatal or rules})
    parts = sorted({rule["hw_sw"] for rule in fatal or rules})
    return {
        "nvlink5": unit,
        "name": f"Xid {rules[0]['xid']}, unit {unit}",
        "meaning": f"NVLink5 unit reports a fault ({', '.join(parts)}); investigate: {', '.join(investigate)}",
        "reason": "NVLink Error",
        "role": "cause",
        "recovery": "isolate_and_restart",
        "fault": "infrastructure",
        "action": fatal[0]["immediate"] if fatal else rules[0]["immediate"],
        "disagreement": "",
        "source": NVLINK5_SOURCE,
    }


def nvlink5_rows(sources: Iterable[Row]) -> list[Row]:
    """Return the NVLink5 table, one row per unit name of kernel lines."""
    rules: dict[str, list[Row]] = {}
    for source in sources:
        for unit in units(source):
            rules.setdefault(unit, []).append(source)
    return [nvlink5_row(unit, rules[unit]) for unit in sorted(rules)]


def render(key: str, rows: Iterable[Row]) -> str:
    """Return a table as text: two comment lines, the header, and the rows in order."""
    columns = (key, *COLUMNS)
    lines = ["# " + FACTS, "# " + OURS, "\t".join(columns)]
    lines += ["\t".join(row[column].replace("\t", " ").strip() for column in columns) for row in rows]
    return "\n".join(lines) + "\n"


def tables(folder: Path) -> dict[str, str]:
    """Return name and content of every table that a source folder gives."""
    return {
        "xid.tsv": render("xid", map(xid_row, read_table(folder / "xid_catalog.tsv"))),
        "sxid.tsv": render("sxid", map(sxid_row, read_table(folder / "sxid_catalog.tsv"))),
        "nvlink5.tsv": render("nvlink5", nvlink5_rows(read_table(folder / "xid_nvlink5_rules.tsv"))),
    }


def main(arguments: list[str]) -> int:
    """Write the tables; return 2 when the arguments are wrong."""
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    target = Path(arguments[1]) if len(arguments) == 2 else Path(__file__).parents[1] / "rules" / "knowledge"
    target.mkdir(parents=True, exist_ok=True)
    for name, content in tables(Path(arguments[0])).items():
        (target / name).write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
