"""Objects in a bucket of S3, Google Cloud Storage or Azure, through obstore."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from logdoctor.errors import SettingsError, StoreDamaged, StoreError, StoreRefused
from logdoctor.extras import translated
from logdoctor.store.log.objects import ObjectFacts

_PATIENCE = timedelta(seconds=20)  # for all tries of one request; what waits for it stays in the log
_TRIES = 4


class Bucket:
    """Objects below a URL such as `s3://bucket/prefix`. Credentials, region and endpoint come from the usual
    environment variables (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, ...)."""

    def __init__(self, url: str) -> None:
        with translated():
            import obstore
            from obstore import exceptions
            from obstore.store import from_url
        self._url, self._obstore, self._failures = url.rstrip("/"), obstore, exceptions.BaseError
        self._exists, self._missing = exceptions.AlreadyExistsError, exceptions.NotFoundError
        self._refused = exceptions.PermissionDeniedError, exceptions.UnauthenticatedError
        limits: Any = {"max_retries": _TRIES, "retry_timeout": _PATIENCE}
        client: Any = {"connect_timeout": "5s", "timeout": "20s", "allow_http": True}
        try:
            self._store: Any = from_url(self._url, client_options=client, retry_config=limits)
        except (self._failures, ValueError) as error:
            cause = f"cannot be used ({str(error).splitlines()[0][:300]})"
            raise SettingsError(f"the bucket {url}", cause, "Use s3://BUCKET/PREFIX.") from error

    def __str__(self) -> str:
        return self._url

    def put(self, name: str, data: bytes) -> None:
        """Write an object durably; `StoreError` when the name exists already.

        If an answer is lost and the request sent again, the object is there with the same bytes, which is no error.
        """
        try:
            self._obstore.put(self._store, name, data, mode="create")
        except self._exists as error:
            if self.size(name) != len(data) or self.get(name, 0, len(data)) != data:
                raise StoreError(self._thing(name), "it exists already", "Nothing was written.") from error
        except self._failures as error:
            raise self._failed(name, error) from error

    def get(self, name: str, begin: int, end: int) -> bytes:
        """Return bytes [begin, end) of an object; `StoreError` when it is missing or shorter."""
        try:
            data = bytes(self._obstore.get_range(self._store, name, start=begin, end=end))
        except (self._failures, FileNotFoundError) as error:
            raise self._failed(name, error) from error
        if len(data) != end - begin:
            cause = f"the bucket sent {len(data)} bytes instead of {end - begin}"
            raise StoreDamaged(self._thing(name), cause, "Restore it, or run `logdoctor doctor`.")
        return data

    def facts(self, name: str) -> ObjectFacts | None:
        """Return the facts of an object; None when there is none."""
        try:
            return _facts(self._obstore.head(self._store, name))
        except (self._missing, FileNotFoundError):
            return None
        except self._failures as error:
            raise self._failed(name, error) from error

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes; None when there is none."""
        facts = self.facts(name)
        return None if facts is None else facts.bytes

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        try:
            self._obstore.delete(self._store, name)
        except (self._missing, FileNotFoundError):
            return
        except self._failures as error:
            raise self._failed(name, error) from error

    def walk(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """Yield the objects below a prefix that ends with `/`, or all."""
        try:
            for page in self._obstore.list(self._store, prefix or None):
                yield from map(_facts, page)
        except self._failures as error:
            raise self._failed(prefix, error) from error

    def sweep(self) -> None:
        """Do nothing: partial objects never exist."""

    def _thing(self, name: str) -> str:
        return f"{self._url}/{name}"

    def _failed(self, name: str, error: Exception) -> StoreError:
        if isinstance(error, (self._missing, FileNotFoundError)):
            return StoreDamaged(self._thing(name), "it is missing", "Restore it, or run `logdoctor doctor`.")
        cause = str(error).splitlines()[0][:300]
        how, kind = ("refuses", StoreRefused) if isinstance(error, self._refused) else ("fails", StoreError)
        return kind(self._thing(name), f"the bucket {how} ({cause})", "Check the bucket and its credentials.")


def _facts(found: Any) -> ObjectFacts:
    return ObjectFacts(found["path"], found["size"], found["last_modified"].timestamp())
