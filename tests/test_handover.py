"""An incident is handed over in 3,000 characters, whatever stands in logs and notes."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.store.incidents.table import Incident
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.types import Coverage, Evidence, Suspect
from logdoctor.web.incidents.answers import EXAMPLES, IncidentStory
from logdoctor.words.handover import MOST, handover
from tests.store.test_incidents import quoted

ONE = next(one for one in EXAMPLES if isinstance(one, Incident))
EVENT = next(one for one in EXAMPLES if isinstance(one, IncidentStory)).items[0]


def stored(*nodes: str, **fields: Any) -> StoredVerdict:
    suspects = tuple(Suspect(node, None, None, "it is named") for node in nodes)
    verdict = msgspec.structs.replace(
        quoted("uncorrectable ECC error", suspects=suspects, recovery="isolate_and_restart"), **fields
    )
    return StoredVerdict(3, 3, "llama-7b", 2, 1795255505.2, True, True, None, None, verdict)


def test_it_tells_what_failed_why_and_what_to_leave_out() -> None:
    read = (Coverage("kernel@gpu-07", "read", "3 lines"), Coverage("slurm@88", "refused"))
    said = handover(ONE, [stored("gpu-07", "gpu-08", coverage=read), stored("gpu-07")], [EVENT])
    assert said.startswith("Incident 3 (acknowledged") and "the newest is llama-7b/2" in said
    assert "Suspects: gpu-07 (2), gpu-08 (1)." in said and "kernel: read; slurm: refused" in said
    assert "ops acknowledged: draining the node." in said
    assert "\n\n#SBATCH --exclude=gpu-[07-08]\nnodeAffinity: {" in said and "values: [gpu-07, gpu-08]" in said


def test_secrets_are_masked_and_names_that_are_none_are_not_pasted() -> None:
    proof = (Evidence("a", "main", 1, "export TOKEN=ghp_0123456789abcdefghijABCDEFGHIJ012345", "x"),)
    said = handover(ONE, [stored("gpu-07; rm -rf /", "$(id)", "gpu-09", evidence=proof)], [])
    assert "ghp_0123456789" not in said and "rm -rf" not in said.partition("\n\n")[2] and "exclude=gpu-09\n" in said


@pytest.mark.parametrize("count", [1, 40, 5000])
def test_many_nodes_fit(count: int) -> None:
    said = handover(ONE, [stored(*(f"node-{7 * number}" for number in range(count)), why="w" * 9000)], [EVENT] * 50)
    assert len(said) <= MOST and ("more" in said.rpartition("}")[2]) == (count == 5000)


@given(st.text(max_size=4000), st.lists(st.text(max_size=300), max_size=5))
def test_any_text_fits_and_stays_in_its_paragraph(text: str, nodes: list[str]) -> None:
    said = handover(
        ONE, [stored(*nodes, why=text, suggestion=text, detail=text)], [msgspec.structs.replace(EVENT, note=text)]
    )
    assert len(said) <= MOST and "\n" not in said.partition("\n\n#SBATCH")[0]


def test_an_incident_without_attempts_is_told() -> None:
    assert handover(ONE, [], []).startswith("Incident 3 (acknowledged")
