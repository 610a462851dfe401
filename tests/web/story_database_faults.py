"""A PostgreSQL that is slow, whose disk is full, or that is killed while jobs send: nothing is lost or doubled."""

import os
import shutil
from collections.abc import Callable

import httpx

from tests import waiting
from tests.at_once import at_once
from tests.postgres import new_folder, own_server
from tests.service.disks import fill, small_disk
from tests.web.conftest import FAILED, Running
from tests.web.story_roles import Cluster, failing, make
from tests.web.story_service_process import final

__all__ = ["make"]
_SLOW = """
CREATE TABLE appended (transaction bigint);
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_sleep(1.0); INSERT INTO appended VALUES (txid_current()); RETURN NULL; END $$;
CREATE TRIGGER slow BEFORE INSERT ON log FOR EACH STATEMENT EXECUTE FUNCTION slow();
"""


def judged(web: Running, *jobs: str) -> None:
    """Wait for the verdicts on jobs whose log is `FAILED`, all of it and once."""
    for job in jobs:
        found = waiting.until(lambda job=job: final(web, job))["verdict"]  # type: ignore[misc]
        assert (found["reason"], found["problems"]) == ("Out of Memory Error", [])
        assert web.client.get(f"/v1/jobs/{job}/attempts/1/streams/main/download").content == FAILED


def test_a_slow_database_slows_senders_and_loses_nothing(make: Callable[..., Cluster]) -> None:
    with own_server() as server:
        server.create("slow")
        cluster = make(LOGDOCTOR_DATABASE_URL=server.url("slow"))
        web, _ = cluster.web(), cluster.worker()
        with server.connected("slow") as connection:
            connection.execute(_SLOW)
        jobs = [f"job-{number}" for number in range(8)]
        at_once(failing, [web] * len(jobs), jobs)
        judged(web, *jobs)
        with server.connected("slow") as connection:
            told = connection.execute("SELECT count(*), count(DISTINCT transaction) FROM appended").fetchone()
        assert told is not None and 0 < told[1] < told[0], "those that wait share a transaction"


def test_a_full_disk_of_the_database_is_told_and_waited_for(make: Callable[..., Cluster]) -> None:
    place = new_folder()
    try:
        with own_server() as server, small_disk(place / "disk", 4 << 20) as disk:
            owner = server.folder.stat()
            for folder in (place, disk):
                os.chown(folder, owner.st_uid, owner.st_gid)
            server.create("crowded")
            with server.connected("crowded") as connection:
                connection.execute(f"CREATE TABLESPACE small LOCATION '{disk}'".encode())
                connection.execute("ALTER TABLE log SET TABLESPACE small")
            cluster = make(LOGDOCTOR_DATABASE_URL=server.url("crowded"))
            web, _ = cluster.web(), cluster.worker()
            failing(web, "before")
            ballast = fill(disk)
            path = "/v1/jobs/later/attempts/1/streams/main/log"
            noise = os.urandom(1 << 20)  # more than the room that is left in the files of the table
            answer = web.client.post(path, params={"offset": 0}, content=noise)
            assert answer.status_code == 507 and int(answer.headers["retry-after"]) > 0, answer.text
            assert "cannot grow" in answer.json()["error"]["cause"]
            ballast.unlink()
            assert web.client.post(path, params={"offset": 0}, content=noise).status_code == 200
            failing(web, "after")
            judged(web, "before", "after")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def test_a_database_that_is_killed_is_waited_for(make: Callable[..., Cluster]) -> None:
    with own_server() as server:
        server.create("killed")
        cluster = make(LOGDOCTOR_DATABASE_URL=server.url("killed"))
        web, _ = cluster.web(), cluster.worker()
        failing(web, "before")
        judged(web, "before")
        server.stop("immediate")
        path = "/v1/jobs/during/attempts/1/streams/main/log"
        answer = web.client.post(path, params={"offset": 0}, content=FAILED)
        assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0, answer.text
        waiting.until(lambda: web.client.get("/readyz").status_code == 503)
        server.start()
        waiting.until(lambda: web.client.get("/readyz").status_code == 200)
        waiting.until(lambda: _taken(web, path))
        assert web.client.post("/v1/jobs/during/attempts/1/end", json={"exit_code": 1}).status_code == 202
        judged(web, "before", "during")


def _taken(web: Running, path: str) -> bool:
    answer: httpx.Response = web.client.post(path, params={"offset": 0}, content=FAILED)
    return answer.status_code in (200, 409)
