"""A job dies, and the bad node is out: from the log that is posted to the cordon, by the service alone."""

from pathlib import Path

import msgspec

from logdoctor.settings import Settings
from logdoctor.wiring import running
from tests import waiting
from tests.nodes.faults import faulty_python
from tests.web.conftest import local_client

LOG = Path(__file__).parents[2] / "eval" / "corpus" / "failures" / "inf-028.log"
"""An uncorrectable ECC error on os-a100-03."""


def test_a_dead_job_leads_to_the_cordon_of_its_bad_node(tmp_path: Path) -> None:
    cordoned = tmp_path / "cordoned"
    settings = Settings(
        data_dir=tmp_path / "data",
        learn="off",
        cases="off",
        agent="off",
        launcher="local",
        local_nodes=4,
        act_test="auto",
        act_cordon="auto",
        cordon_with="file",
        cordon_file=cordoned,
        cordon_share=0.3,
        test_repeats_after_steps=2,
        serve_workers=0,
        test_python=faulty_python(tmp_path, {"local-2": "sends wrong"}),
    )
    service = running.service(settings)
    with local_client(service) as client:
        assert client.put("/v1/jobs/llama", json={"nodelist": "local-[0-3]"}).status_code == 200
        headers = {"content-type": "application/octet-stream"}
        log = "/v1/jobs/llama/attempts/1/streams/main/log"
        assert client.post(log, content=LOG.read_bytes(), params={"offset": 0}, headers=headers).status_code == 200
        client.post("/v1/jobs/llama/attempts/1/end", json={"exit_code": 1})
        entry = waiting.until(lambda: cordoned.exists() and cordoned.read_text())
        (verdict,) = client.get("/v1/verdicts").json()["items"]
        assert entry.startswith("local-2 ") and f"verdict {verdict['id']}" in entry and "wrong data" in entry

        (test,) = client.get("/v1/node-tests").json()["items"]
        assert test["verdict"] == verdict["id"] and test["by"] == "policy"

        def done() -> bool:  # entered after the file is written
            kinds = {one["action"]["kind"]: one["state"] for one in client.get("/v1/actions").json()["items"]}
            return (kinds["test_nodes"], kinds["cordon"]) == ("done", "done")

        waiting.until(done)
        node = client.get("/v1/nodes/local-2").json()
        assert (node["cordons"][0]["state"], node["findings"][0]["standing"]) == ("standing", "faulty")

        answer = client.post("/v1/nodes/local-2/uncordon", json={"why": "board replaced"})
        assert answer.status_code == 200 and msgspec.json.decode(answer.content)["state"] == "undone"
        assert cordoned.read_text() == ""
        steps = [event["step"] for event in client.get("/v1/audit", params={"node": "local-2"}).json()["items"]]
        assert steps[0] == "undone" and "standing" in steps and "wanted" in steps
