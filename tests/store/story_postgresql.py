"""A server of PostgreSQL is killed in the middle, and keeps what it has acknowledged."""

import threading

from logdoctor.errors import StoreError
from logdoctor.store.jobs.records import Records
from tests import waiting
from tests.postgres import own_server
from tests.store.test_postgresql import SECRET
from tests.store.test_records import verdict


def test_what_was_acknowledged_is_there_after_the_server_was_killed() -> None:
    with own_server() as server:
        server.create("records")
        records = Records(server.url("records", SECRET))
        said: list[list[int]] = [[], [], []]
        failed: list[StoreError] = []
        goes_on = threading.Event()

        def write(me: int) -> None:
            for turn in range(100_000):
                try:
                    records.publish(f"j{me}", turn, verdict(fingerprint=f"{me}.{turn}"), True, float(turn))
                except StoreError as error:
                    failed.append(error)
                    return
                said[me].append(turn)
                if goes_on.is_set():
                    return

        threads = [threading.Thread(target=write, args=(me,)) for me in range(3)]
        for thread in threads:
            thread.start()
        waiting.until(lambda: min(map(len, said)) >= 5 or failed)
        server.stop("immediate")
        for thread in threads:
            thread.join()
        assert len(failed) == 3 and all(SECRET not in str(error) for error in failed)
        server.start()
        for me, turns in enumerate(said):
            kept = [attempt.number for attempt in records.attempts(f"j{me}")]
            assert kept[: len(turns)] == turns != []
            assert kept[len(turns) :] in ([], [len(turns)]), "at most the one whose answer was lost"
            assert all(records.current(f"j{me}", number) for number in kept), "an attempt and its verdict are one"
        events = [stored.event for stored in records.newer(0, 500)]
        assert events == list(range(1, len(events) + 1))
        goes_on.set()
        write(0)
        records.close()
