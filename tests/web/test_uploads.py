"""Whole logs that are sent to be diagnosed at once: places for them."""

from contextlib import ExitStack

from logdoctor.errors import Busy
from logdoctor.web.jobs.ingest import LogTurns
from tests.web.conftest import Guarded, bearer


def test_one_caller_leaves_places_for_others(guarded: Guarded) -> None:
    client = guarded.client
    turns = client.app.state.logdoctor.once(LogTurns)  # type: ignore[attr-defined]
    first, second = (bearer(guarded.secret("ingest", name=name)) for name in ("first", "second"))

    def statuses() -> list[int]:
        return [client.post("/v1/diagnose", content=b"x\n", headers=one).status_code for one in (first, second)]

    with ExitStack() as held:

        def places(who: str) -> int:
            """How many somebody gets beside those that are held."""
            for count in range(100):
                try:
                    held.enter_context(turns.upload(who))
                except Busy as error:
                    assert who in error.cause
                    return count
            raise AssertionError

        assert (places("first"), places("third")) == (16, 8)
        assert statuses() == [503, 200]
    assert statuses() == [200, 200]
