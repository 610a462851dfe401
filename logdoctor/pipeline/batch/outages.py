"""Errors that are not about one log: they end a run, which can be resumed. A row would keep them for good."""

import errno
from typing import TypeGuard

from logdoctor.errors import LogdoctorError, RequestRefused, ServiceError, StoreDamaged, StoreError

_GO_ON = "Then give the same command again: it goes on where it was."


def outage(name: str, error: Exception) -> StoreError | None:
    """Return the error that ends the run, if `error` may pass: a full disk, a failing bucket, data folder or service, a
    refusing service. None for an error of this log alone."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            name,
            "cannot be unpacked: the disk is full",
            f"Make room beside OUT, or in the folder of temporary files. {_GO_ON}",
        )
    if _may_pass(error):
        return StoreError(error.thing, error.cause, f"{error.next_step.removesuffix(_GO_ON).strip()} {_GO_ON}")
    return None


def _may_pass(error: Exception) -> TypeGuard[LogdoctorError]:
    if isinstance(error, RequestRefused):
        return error.code != "not_found"
    return isinstance(error, (StoreError, ServiceError)) and not isinstance(error, StoreDamaged)


def listing_failed(name: str, error: Exception) -> StoreError:
    """Return the error that ends the run when logs cannot be listed."""
    cause = f"cannot be listed ({getattr(error, 'strerror', None) or error})"
    return StoreError(name, cause, f"Check it. {_GO_ON}")
