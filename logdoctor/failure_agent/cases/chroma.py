"""Chroma, in a folder or behind a URL; the only module that knows it.

It is imported at the first use: that takes seconds. By itself Chroma would read its settings from the environment and
from a file `.env` where it runs, wait for a server for ever, and ask it through a proxy; the settings and the HTTP
client made here leave that out, telemetry too.

A folder may be used by many processes, though Chroma is made for one: a process does not find what another one writes,
and both write the same index files. So each use takes a lock, and whoever used the folder last is noted there; a
process that finds another's mark reopens the folder, in tens of milliseconds.
"""

import fcntl
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from logdoctor.errors import RecallError, VectorsDamaged
from logdoctor.extras import missing

if TYPE_CHECKING:
    import httpx

_MOST_BODY = 64 << 20  # bytes of a server's answer
_HNSW = {"space": "cosine", "ef_search": 200}  # more than by default: a case that is there is found


class _Place:
    """Where collections are: what is open of Chroma, used by one thread at a time."""

    thing: str

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.RLock()
        self._system: Any = None

    @contextmanager
    def collection(self, name: str) -> Iterator[Any]:
        """Yield a collection, made when it was not there, for one use of it; what Chroma raises as `RecallError`."""
        load()
        with self._lock, self._used(), self._translated():
            if self._system is None:
                self._system = self._opened()
            yield _collection(self._system, name)

    def close(self) -> None:
        """Give back what is open."""
        with self._lock:
            system, self._system = self._system, None
            if system is not None:
                system.stop()

    @contextmanager
    def _used(self) -> Iterator[None]:
        yield

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise errors of Chroma, and the panics of its native part, which are no `Exception`, as errors of ours."""
        try:
            yield
        except (RecallError, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            self._dropped()
            raise self._refusal(error) from error

    def _dropped(self) -> None:
        """Leave what is open, which is in an unknown state."""
        try:
            self.close()
        except BaseException as error:  # Chroma raises whatever its Rust part panics with
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise

    def _opened(self) -> Any:
        raise NotImplementedError

    def _refusal(self, error: BaseException) -> RecallError:
        raise NotImplementedError


class Folder(_Place):
    """A folder that Chroma writes, used by one process at a time."""

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(seconds)
        self._folder = folder
        self._mark = uuid.uuid4().hex.encode()
        self.thing = f"past cases in {folder}"

    def clear(self, name: str) -> None:
        """Delete what Chroma wrote, all collections: they are all made again from elsewhere."""
        with self._lock, self._used():
            self._dropped()
            try:
                for path in self._folder.iterdir():
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    elif path.name != "lock":
                        path.unlink()
            except OSError as error:
                raise RecallError(self.thing, f"cannot be cleared ({error.strerror})", "Delete the folder.") from error

    @contextmanager
    def _used(self) -> Iterator[None]:
        descriptor = self._locked()
        try:
            if os.pread(descriptor, 64, 0) != self._mark:
                self._dropped()  # what is open knows nothing of what the other process wrote
                os.pwrite(descriptor, self._mark, 0)
            yield
        finally:
            os.close(descriptor)

    def _locked(self) -> int:
        """Return the lock file, locked; `RecallError` when others hold it too long or the folder cannot be used."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            next_step = "Make it writable, or set LOGDOCTOR_CHROMA_URL."
            raise RecallError(self.thing, f"cannot be used ({error.strerror})", next_step) from error
        until = time.monotonic() + self._seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except OSError as error:
                if time.monotonic() > until:
                    os.close(descriptor)
                    raise RecallError(
                        self.thing, "another process has been using it for too long", "Try again later."
                    ) from error
            time.sleep(0.005)  # a lock of a file tells nobody when it is free

    def _opened(self) -> Any:
        return _system(is_persistent=True, persist_directory=str(self._folder))

    def _refusal(self, error: BaseException) -> RecallError:
        return VectorsDamaged(self.thing, f"cannot be read ({_told(error)})", "Run `logdoctor cases reindex`.")


class Server(_Place):
    """A Chroma server, asked directly; each request is over after `seconds` and at a bounded answer."""

    def __init__(self, url: str, seconds: float) -> None:
        super().__init__(seconds)
        self._url, self._port = _parts(url)
        self.thing = f"Chroma server {_shown(self._url)}"

    def clear(self, name: str) -> None:
        """Delete one collection: the others may be of other services."""
        with self.collection(name):
            _api(self._system).delete_collection(name)

    def _opened(self) -> Any:
        system = _system(
            start=False, chroma_api_impl="chromadb.api.fastapi.FastAPI", chroma_server_host=_shown(self._url),
            chroma_server_http_port=self._port,
        )  # fmt: skip
        api = _api(system)
        api._session.close()
        api._session = _session(self._url, dict(api._header), self._seconds)
        system.start()
        return system

    def _refusal(self, error: BaseException) -> RecallError:
        return RecallError(self.thing, f"does not answer correctly ({_told(error)})", "Check LOGDOCTOR_CHROMA_URL.")


def _parts(url: str) -> tuple[SplitResult, int]:
    """Return a server's URL in parts, and its port; `RecallError` for one that cannot be used. It is not quoted: it may
    hold a password."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and not parts.query and not parts.fragment:
            return parts, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        pass
    raise RecallError("LOGDOCTOR_CHROMA_URL", "it is not the URL of a server", "Set it to http://HOST:PORT.")


def _shown(url: SplitResult) -> str:
    """Return a server's URL without user and password."""
    return url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()


def load() -> None:
    """Import Chroma, and LlamaIndex on top of it; `RecallError` when that fails, as with a bad CHROMA_* variable."""
    try:
        import llama_index.vector_stores.chroma  # noqa: F401 - so that later imports cannot fail
    except Exception as error:
        if extra := missing(error):
            raise RecallError(extra.thing, extra.cause, extra.next_step) from error
        next_step = "Install the requirements of logdoctor again, and unset CHROMA_* variables."
        raise RecallError("past cases", f"Chroma cannot be loaded ({_told(error)})", next_step) from error


def _system(start: bool = True, **chosen: Any) -> Any:
    """Return Chroma with these settings alone, started."""
    from chromadb.config import Settings, System

    class Given(Settings):  # type: ignore[misc] # its base has no types
        @classmethod
        def settings_customise_sources(cls, settings_cls: Any, init_settings: Any, **others: Any) -> tuple[Any, ...]:
            return (init_settings,)

    system = System(Given(anonymized_telemetry=False, **chosen))
    if start:
        system.start()
    return system


def _api(system: Any) -> Any:
    from chromadb.api import ServerAPI

    return system.instance(ServerAPI)


def _collection(system: Any, name: str) -> Any:
    """Return the collection of this name, made when it was not there; vectors come from outside."""
    from chromadb.api.models.Collection import Collection

    api = _api(system)
    model = api.get_or_create_collection(name, configuration={"hnsw": _HNSW})
    return Collection(client=api, model=model, embedding_function=None)


def _session(url: SplitResult, headers: dict[str, str], seconds: float) -> "httpx.Client":
    """Return an HTTP client that knows no proxy, no `.netrc` and no redirect, and leaves a server that does not end."""
    import httpx

    class Bounded(httpx.SyncByteStream):
        def __init__(self, stream: Any, until: float) -> None:
            self._stream, self._until = stream, until

        def __iter__(self) -> Iterator[bytes]:
            size = 0
            for part in self._stream:
                size += len(part)
                if size > _MOST_BODY or time.monotonic() > self._until:
                    raise httpx.ReadError("the answer does not end")
                yield part

        def close(self) -> None:
            self._stream.close()

    class Direct(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            until = time.monotonic() + seconds
            answer = super().handle_request(request)
            if "content-encoding" in answer.headers:  # it may unpack to more than memory holds
                answer.close()
                raise httpx.ReadError("the answer is compressed")
            stream = Bounded(answer.stream, until)
            return httpx.Response(answer.status_code, headers=answer.headers, stream=stream)

    login = (unquote(url.username or ""), unquote(url.password or "")) if "@" in url.netloc else None
    return httpx.Client(
        headers=headers | {"Accept-Encoding": "identity"},
        auth=login,
        timeout=seconds,
        trust_env=False,
        transport=Direct(trust_env=False),
    )


def _told(error: BaseException) -> str:
    """Return an error of a library in one short line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
