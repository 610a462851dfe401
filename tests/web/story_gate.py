"""Who may do what, of a real process: it does not begin where everybody could ask, and keeps its secrets."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from tests.web.conftest import Running, bearer


def test_off_loopback_there_must_be_a_token(
    runs: Callable[..., AbstractContextManager[Running]], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        started = []
        for number, (arguments, environment) in enumerate(
            (
                (("--host", "0.0.0.0", "--port", "0"), {}),
                (("--port", "0"), {"LOGDOCTOR_AUTH": "on"}),
            )
        ):
            running = stack.enter_context(runs(tmp_path / str(number)))
            running.process = running.spawn(*arguments, **environment)
            started.append(running)
        for running in started:
            assert running.process is not None and running.process.wait() == 2
            message = running.messages()
            assert "every request needs a token" in message and "logdoctor tokens create" in message
            assert "Traceback" not in message


def test_secrets_are_nowhere_in_the_data_folder(runs: Callable[..., AbstractContextManager[Running]]) -> None:
    with runs(LOGDOCTOR_AUTH="on") as running:
        headers = running.start_with_token("admin")
        secret = headers["Authorization"].removeprefix("Bearer ")
        assert running.client.get("/v1/jobs", headers=headers).status_code == 200
        assert running.client.get("/v1/jobs", headers=bearer(secret[:-1] + "_")).status_code == 401
        assert running.client.get("/v1/jobs").status_code == 401
        written = [*running.folder.rglob("*"), running.folder.with_name("data.err")]
        for file in written:
            if file.is_file():
                data = file.read_bytes()
                assert secret.encode() not in data and secret[4:20].encode() not in data, file
        for private in (running.folder,):
            assert not private.stat().st_mode & 0o077, private
        assert running.stop() == 0
        assert secret not in running.messages()
