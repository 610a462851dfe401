"""Lines that show causes: no learned rule may ever take one of them (law 2).

They come from three places: the canary corpus in `rules/canary/` (lines of true form and invented detail, one file for
each family of failures, many without any error-like word), the examples of all diagnosis rules, retired ones included,
and a kernel line for each fault in the vendor tables.
"""

from collections.abc import Iterator
from pathlib import Path

from logdoctor.errors import RuleError
from logdoctor.rules.load import RuleBook


def causes(book: RuleBook, folder: Path) -> tuple[str, ...]:
    """Return all cause lines without duplicates; `RuleError` when the corpus is unreadable or empty."""
    return tuple(dict.fromkeys((*corpus(folder), *examples(book), *kernel_lines(book))))


def corpus(folder: Path) -> tuple[str, ...]:
    """Return the lines of a folder's `*.txt` files, without empty ones and comments (`# `)."""
    try:
        texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt"))]
    except (OSError, UnicodeDecodeError) as error:
        raise RuleError(str(folder), f"the canary corpus cannot be read ({error})", "Restore the files.") from error
    lines = tuple(line for text in texts for line in text.split("\n") if line.strip() and not line.startswith("# "))
    if not lines:
        raise RuleError(str(folder), "the canary corpus holds no lines", "Restore the files: they guard learned rules.")
    return lines


def examples(book: RuleBook) -> Iterator[str]:
    """Yield the examples of all diagnosis rules, retired ones included, and their known false matches."""
    for rule in book.diagnoses:
        for text in (*(one.text for one in rule.must_match), *(one.text for one in rule.known_wrong)):
            yield from (line for line in text.split("\n") if line.strip())


def kernel_lines(book: RuleBook) -> Iterator[str]:
    """Yield kernel lines for each row of the vendor tables."""
    for number, row in book.knowledge("xid").items():
        yield f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=4182, name=python, {row['name']}"
        yield f"[1234567.890123] NVRM: Xid (PCI:0000:3b:00): {number}, {row['meaning']}"
    for number, row in book.knowledge("sxid").items():
        yield f"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {number}, Fatal, Link 32 {row['name']} (First)"
    for unit in book.knowledge("nvlink5"):
        yield f"NVRM: Xid (PCI:0018:01:00): 149, {unit} Fatal XC0 i0 Link 05 (0x001d9cc6 0x8a104400 0x00000000)"
