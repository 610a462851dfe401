"""What the metrics tell of workers has a bound, and is told to those who may see all jobs."""

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import quote

import msgspec
import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from starlette.testclient import TestClient

from logdoctor.rules.scanner import Scanner
from logdoctor.service.figures import ProcessFigures
from logdoctor.store.schema import workers
from tests.web.conftest import FAILED, Running, local_client, new_service, options

Runs = Callable[..., AbstractContextManager[Running]]


class Metrics:
    """What /metrics says at a moment."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))
        assert all(family.documentation and family.type != "unknown" for family in families)
        self.samples: list[Sample] = [sample for family in families for sample in family.samples]

    def by(self, name: str, label: str = "worker") -> dict[str, float]:
        """The values of a metric by one of its labels."""
        found = [one for one in self.samples if one.name == f"logdoctor_{name}"]
        assert len({tuple(one.labels.items()) for one in found}) == len(found)
        return {one.labels.get(label, ""): one.value for one in found}

    def one(self, name: str) -> float:
        """The value of a metric without labels."""
        return self.by(name)[""]

    def pids(self) -> dict[int, str]:
        """The worker of each process."""
        return {
            int(one.labels["pid"]): one.labels["worker"] for one in self.samples if one.name == "logdoctor_worker_info"
        }


def test_labels_are_bounded_whatever_comes(tmp_path: Path, scanner: Scanner) -> None:
    service = new_service(tmp_path / "data", scanner)
    with local_client(service) as client:

        def samples_after(names: list[str]) -> int:
            for name in names:
                path = f"/v1/jobs/{quote(name, safe='')}/attempts/1/streams/{quote(name[::-1], safe='')}/log"
                client.post(path, params={"offset": 0}, content=FAILED)
            client.get("/metrics")
            return len(Metrics(client.get("/metrics").text).samples)

        odd = ['a"b\\', "new\nline", "{}", "größe", "x" * 200, "*"]
        begin = samples_after(odd)  # each route and kind of answer once
        assert samples_after([f"job-{number}" for number in range(40)]) == begin

        invented = ProcessFigures(model_calls={f"result-{n}": 1 for n in range(500)}, spans={"evil\n": 7})
        texts = ["", "nonsense", '{"streams":"many"}', "[1]", msgspec.json.encode(invented).decode(), '{"later":1}']
        with service.records.database.appending() as connection:
            told = {"rulebook": "", "until": 9e9}
            rows = [{**told, "worker": f"{n:016x}"[::-1], "figures": texts[n % len(texts)]} for n in range(1000)]
            connection.execute(sa.insert(workers), rows)
        service.looking.stop()  # a look that began before the rows came would replace what this one finds
        service.looking._look()
        many = Metrics(client.get("/metrics").text)
        assert 100 < len(many.by("verdicts_total")) <= 129
        labels = defaultdict(set)
        for one in many.samples:
            for label, value in one.labels.items():
                if one.name.startswith("logdoctor_"):
                    labels[label].add(value)
        ours = {"worker", "shard", "result", "direction", "rule", "guard", "status", "host", "pid"}
        assert labels.keys() <= ours | {"method", "route", "reason", "category", "state", "le"}
        assert not any("job-" in value or "größe" in value for values in labels.values() for value in values)
        assert len(labels["route"]) < 10 and len(labels["reason"]) <= 129
        assert len(labels["shard"]) == 64 and not any("evil" in one or "result-" in one for one in labels["result"])
        assert all(len(one) <= 8 for one in labels["worker"])


def test_nothing_is_told_of_others_while_the_database_is_away(tmp_path: Path, scanner: Scanner) -> None:
    service = new_service(tmp_path / "data", scanner)
    with TestClient(local_client(service, options()).app, base_url="http://127.0.0.1") as client:
        assert Metrics(client.get("/metrics").text).one("workers") == 1
        service.looking.stop()
        service.looking._looked -= 11.0  # as if no look had succeeded since
        now = Metrics(client.get("/metrics").text)
        assert not now.by("workers") and not now.by("log_bytes") and now.by("streams") == {service.worker: 0.0}
