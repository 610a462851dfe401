"""Workers on a Ray cluster: named actors that Ray places and restarts.

The epochs of the shards, not Ray, make sure that nothing is lost or doubled, wherever a worker runs and however often.
"""

import hashlib
import os
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import structlog

from logdoctor.errors import SettingsError, StoreDamaged, StoreError
from logdoctor.service.service import Service
from logdoctor.settings import Settings, data_folder
from logdoctor.store.database import Database
from logdoctor.wiring.ray_cluster import RayUnusable, connected
from logdoctor.wiring.running import worker
from logdoctor.wiring.stored import database_url

log = structlog.get_logger()

_NAMESPACE = "logdoctor"
_NAME = "worker-"
_CPUS = 1.0  # that Ray reserves for a worker
_READY_SECONDS = 120.0
_ANSWER_SECONDS = 10.0
_AGAIN = 5.0  # seconds until a worker is started again
_STOP_SECONDS = 60.0  # to write received data


class RayWorker:
    """A worker as an actor; it works until it is stopped or killed."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._made_with = _marked(settings)
        folder = data_folder(settings) / f"ray-{name}-{os.getpid()}"  # one machine may have several
        self._working = _started(msgspec.structs.replace(settings, data_dir=folder, serve_workers=1))

    def made_with(self) -> str:
        """Return the identity of its program and settings."""
        return self._made_with

    def node(self) -> str:
        """Return its node, once it works."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def stop(self) -> None:
        """Write received data, and release the shards."""
        self._working.stop()


def _started(settings: Settings) -> Service:
    """Return a started worker. It waits for a database that is away, because Ray never retries an actor whose
    construction failed."""
    while True:
        try:
            working = worker(settings)
            working.start()
            return working
        except StoreDamaged:
            raise
        except StoreError as error:
            log.warning("worker not started", cause=str(error))
            time.sleep(_AGAIN)


def _marked(settings: Settings) -> str:
    """Return the version and a digest of the settings, without those that differ between workers."""
    shared = msgspec.structs.replace(settings, data_dir=Path(), serve_workers=1)
    return f"{version('logdoctor')} {hashlib.sha256(repr(msgspec.structs.astuple(shared)).encode()).hexdigest()}"


def scale(settings: Settings, address: str, count: int) -> dict[str, str]:
    """Scale the workers on a Ray cluster, and return the node of each. The address `auto` is that of this machine. The
    workers outlive this process; surplus ones are stopped, and those with other settings or another version are
    restarted. `RayUnusable` without such a cluster, or without room in it."""
    _require_shared(settings)
    with connected(address, _NAMESPACE) as ray:
        return _scaled(ray, settings, count)


def _require_shared(settings: Settings) -> None:
    """Raise `SettingsError` when workers on other machines could not reach the stored data."""
    database = Database(database_url(settings))
    is_file = database.is_file
    database.close()
    if is_file:
        cause = "is a file, which workers on other machines cannot use"
        raise SettingsError("LOGDOCTOR_DATABASE_URL", cause, "Set that of a PostgreSQL.")
    if "://" not in settings.archive_url and not Path(settings.archive_url or ".").is_absolute():
        cause = "is no place that workers on other machines reach"
        next_step = "Set that of a bucket, or the absolute path of a folder that all machines mount."
        raise SettingsError("LOGDOCTOR_ARCHIVE_URL", cause, next_step)


def _scaled(ray: Any, settings: Settings, count: int) -> dict[str, str]:
    options = {"lifetime": "detached", "max_restarts": -1, "num_cpus": _CPUS, "get_if_exists": True}
    names = [f"{_NAME}{number}" for number in range(count)]
    for name in _running(ray):
        with suppress(ray.exceptions.RayError, ValueError):  # one that is gone is what is wanted
            actor = ray.get_actor(name, _NAMESPACE)
            made_with = _made_with(ray, actor)
            if name in names and made_with == _marked(settings):
                continue
            if made_with:
                with suppress(ray.exceptions.RayError):
                    ray.get(actor.stop.remote(), timeout=_STOP_SECONDS)
            ray.kill(actor)
    actors = [ray.remote(RayWorker).options(name=name, **options).remote(settings, name) for name in names]
    try:
        return dict(zip(names, ray.get([actor.node.remote() for actor in actors], timeout=_READY_SECONDS), strict=True))
    except ray.exceptions.RayError as error:
        cause = f"not all of {count} workers run after {_READY_SECONDS:g} s ({error})"
        next_step = "Add nodes, or ask for fewer workers; those that fit work already."
        raise RayUnusable("the Ray cluster", cause, next_step) from error


def _made_with(ray: Any, actor: Any) -> str:
    """Return the identity of a worker's program and settings; "" while it starts or restarts."""
    try:
        return str(ray.get(actor.made_with.remote(), timeout=_ANSWER_SECONDS))
    except (ray.exceptions.RayError, AttributeError):
        return ""


def _running(ray: Any) -> list[str]:
    """Return the names of the running workers."""
    named = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True) if one["namespace"] == _NAMESPACE]
    return [name for name in named if name.removeprefix(_NAME).isdigit()]
