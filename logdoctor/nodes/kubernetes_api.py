"""A Kubernetes cluster over its API: nodes, and the Jobs, pods and logs of one namespace.

The official client reads the kubeconfig, handles credentials and TLS, and sends the requests. Answers are parsed here,
because the client's models refuse objects with fields newer than themselves, drop what they do not know (others' taints
must go back unchanged), and read answers of any size.
"""

import http.client
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import urllib3
from kubernetes import client, config
from kubernetes.config.incluster_config import SERVICE_TOKEN_FILENAME

from logdoctor.errors import LogdoctorError
from logdoctor.text import harmless
from logdoctor.types.nodes import NAME

CONNECT_SECONDS = 5.0
PAGE = 250
"""Objects in one page of a list."""
ANSWER_LIMIT = 1 << 28
"""Bytes of an answer; a page of 250 pods with a probe in each command line has some 10 MB."""
_ERROR_LIMIT = 1 << 16
_PAGES = 400
_TRIES = 3
_PAUSES = (0.2, 0.6)
_LONGEST_PAUSE = 5.0
_WIDTH = 300
_PASSING = (429, 500, 502, 503, 504)


class ClusterError(LogdoctorError):
    """A cluster does not answer, or refuses.

    `status` is the HTTP status, 0 without an answer; `passing`: the same may succeed later.
    """

    def __init__(self, thing: str, cause: str, next_step: str, status: int = 0, passing: bool = False) -> None:
        super().__init__(thing, cause, next_step)
        self.status, self.passing = status, passing

    def __reduce__(self) -> tuple[type["ClusterError"], tuple[str, str, str, int, bool]]:
        return ClusterError, (self.thing, self.cause, self.next_step, self.status, self.passing)


class _Object(msgspec.Struct, rename="camel"):
    """The fields of an object that are used; others are ignored. A missing field may also be null."""


class Metadata(_Object):
    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class Condition(_Object):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class Address(_Object):
    type: str = ""
    address: str = ""


class NodeSpec(_Object):
    unschedulable: bool | None = None
    taints: list[dict[str, Any]] | None = None


class NodeStatus(_Object):
    addresses: list[Address] | None = None
    conditions: list[Condition] | None = None


class KubeNode(_Object):
    metadata: Metadata
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class Waiting(_Object):
    reason: str | None = None
    message: str | None = None


class Terminated(_Object):
    exit_code: int = -1
    reason: str | None = None
    message: str | None = None


class ContainerState(_Object):
    waiting: Waiting | None = None
    running: dict[str, Any] | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Object):
    name: str = ""
    state: ContainerState | None = None


class PodStatus(_Object):
    phase: str = ""
    reason: str | None = None
    message: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(_Object):
    metadata: Metadata
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class KubernetesJob(_Object):
    metadata: Metadata


class _Event(_Object):
    type: str | None = None
    reason: str | None = None
    message: str | None = None


class _ListMetadata(msgspec.Struct):
    continued: str | None = msgspec.field(default=None, name="continue")


_Item = TypeVar("_Item", KubeNode, Pod, KubernetesJob, _Event)
_Answer = TypeVar("_Answer")


class _Page(msgspec.Struct, Generic[_Item]):
    items: list[_Item] | None = None
    metadata: _ListMetadata = msgspec.field(default_factory=_ListMetadata)


_LISTS: Mapping[type, Any] = {
    KubeNode: _Page[KubeNode],
    Pod: _Page[Pod],
    KubernetesJob: _Page[KubernetesJob],
    _Event: _Page[_Event],
}


class _Status(msgspec.Struct):
    message: str = ""


class Cluster:
    """The requests of node tests and cordons. They block for a bounded time, and may come from any thread.

    Without a `kubeconfig` it is the cluster that this process runs in, else that of `~/.kube/config`. `seconds` limits
    an answer. All methods raise `ClusterError`.
    """

    def __init__(self, kubeconfig: str = "", context: str = "", seconds: float = 10.0) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._seconds = seconds
        self._client: client.ApiClient | None = None
        self._opening = threading.Lock()

    def nodes(self, selector: str = "") -> list[KubeNode]:
        """Return all nodes, or those of a label selector."""
        return self._all("/api/v1/nodes", selector, KubeNode)

    def node(self, name: str) -> KubeNode | None:
        """Return a node; None without one of this name."""
        if not NAME.fullmatch(name):  # in a path it could name something else
            return None
        try:
            return _decoded(self._ask("GET", "/api/v1/nodes/{name}", {"name": name}), KubeNode)
        except ClusterError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                return None
            raise

    def patch_node(self, name: str, patch: Mapping[str, Any]) -> KubeNode:
        """Merge a patch into a node (RFC 7386) and return the result.

        If the patch has `metadata.resourceVersion` and the node has changed since, the error has status 409.
        """
        query = (("fieldManager", "logdoctor"), ("fieldValidation", "Strict"))
        kind = "application/merge-patch+json"
        return _decoded(self._ask("PATCH", "/api/v1/nodes/{name}", {"name": name}, query, patch, kind), KubeNode)

    def create_job(self, namespace: str, job: Mapping[str, Any]) -> None:
        """Create a Job; the error has status 409 when its name exists."""
        query = (("fieldManager", "logdoctor"), ("fieldValidation", "Strict"))
        self._ask("POST", "/apis/batch/v1/namespaces/{namespace}/jobs", {"namespace": namespace}, query, job)

    def delete_job(self, namespace: str, name: str) -> bool:
        """Delete a Job and, in the background, its pods; return whether it existed."""
        path = "/apis/batch/v1/namespaces/{namespace}/jobs/{name}"
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        try:
            self._ask("DELETE", path, {"namespace": namespace, "name": name}, (), options)
        except ClusterError as error:
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    def jobs(self, namespace: str, selector: str) -> list[KubernetesJob]:
        """Return the Jobs of a label selector."""
        return self._all("/apis/batch/v1/namespaces/{namespace}/jobs", selector, KubernetesJob, namespace)

    def pods(self, namespace: str, selector: str) -> list[Pod]:
        """Return the pods of a label selector."""
        return self._all("/api/v1/namespaces/{namespace}/pods", selector, Pod, namespace)

    def log(self, namespace: str, pod: str, container: str, lines: int, limit: int) -> bytes:
        """Return the last `lines` of a container's output and errors, at most `limit` bytes."""
        query = (("container", container), ("tailLines", str(lines)))
        path = "/api/v1/namespaces/{namespace}/pods/{name}/log"
        return self._ask("GET", path, {"namespace": namespace, "name": pod}, query, tail=limit)

    def warnings(self, namespace: str, kind: str, name: str) -> list[str]:
        """Return the cluster's warning events about an object."""
        fields = f"involvedObject.kind={kind},involvedObject.name={name},type=Warning"
        events = self._all("/api/v1/namespaces/{namespace}/events", fields, _Event, namespace, "fieldSelector")
        return [harmless(f"{event.reason}: {event.message}", _WIDTH) for event in events]

    def close(self) -> None:
        """Close the connections."""
        with self._opening:
            if self._client is not None:
                self._client.rest_client.pool_manager.clear()
                self._client = None

    def _all(
        self, path: str, selector: str, kind: type[_Item], namespace: str = "", by: str = "labelSelector"
    ) -> list[_Item]:
        found: list[_Item] = []
        continued = ""
        for _ in range(_PAGES):
            query = [("limit", str(PAGE))]
            query += [(by, selector)] if selector else []
            query += [("continue", continued)] if continued else []
            answer = self._ask("GET", path, {"namespace": namespace} if namespace else {}, query)
            items, continued = _page(answer, kind)
            found += items
            if not continued:
                return found
        raise ClusterError(f"{path}", f"there are more than {_PAGES * PAGE}", "Choose fewer with a label selector.")

    def _ask(
        self,
        method: str,
        path: str,
        names: Mapping[str, str],
        query: Sequence[tuple[str, str]] = (),
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
        tail: int = 0,
    ) -> bytes:
        """Return the answer to a request, retrying temporary failures if that is harmless."""
        for attempt in range(_TRIES):
            try:
                return self._ask_once(method, path, names, query, body, kind, tail)
            except _Refused as refused:
                again = refused.status == http.HTTPStatus.TOO_MANY_REQUESTS or method != "POST"
                if attempt + 1 == _TRIES or not (refused.soon and again):
                    raise refused.error from refused
                time.sleep(min(refused.pause or _PAUSES[attempt], _LONGEST_PAUSE))
        raise AssertionError("a request ends in its last try")

    def _ask_once(
        self,
        method: str,
        path: str,
        names: Mapping[str, str],
        query: Sequence[tuple[str, str]],
        body: Mapping[str, Any] | None,
        kind: str,
        tail: int,
    ) -> bytes:
        api = self._opened()
        thing = f"the Kubernetes cluster at {harmless(str(api.configuration.host), 200)}"
        headers = {"Accept": "application/json, */*", **({"Content-Type": kind} if body is not None else {})}
        until = time.monotonic() + CONNECT_SECONDS + self._seconds
        try:
            request = api.param_serialize(
                method,
                path,
                path_params=dict(names),
                query_params=list(query),
                header_params=headers,
                body=None if body is None else dict(body),
                auth_settings=["BearerToken"],
            )
            response = api.call_api(*request, _request_timeout=(CONNECT_SECONDS, self._seconds)).response
            good = http.HTTPStatus.OK <= response.status < http.HTTPStatus.MULTIPLE_CHOICES
            text = _read(response, until, tail if good else _ERROR_LIMIT)
        except client.ApiException as error:  # the client turns TLS errors into these
            raise _Refused(_not_safe(thing, str(error.reason))) from error
        except urllib3.exceptions.SSLError as error:
            raise _Refused(_not_safe(thing, str(error))) from error
        except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError) as error:
            raise _unanswered(thing, error, self._seconds) from error
        if good:
            return text
        pause = _seconds(response.headers.get("Retry-After"))
        raise _Refused(_refusal(thing, response.status, text), soon=response.status in _PASSING, pause=pause)

    def _opened(self) -> client.ApiClient:
        with self._opening:
            if self._client is None:
                self._client = client.ApiClient(self._configuration())
            return self._client

    def _configuration(self) -> client.Configuration:
        made = client.Configuration()
        inside = not self._kubeconfig and not self._context and os.path.isfile(SERVICE_TOKEN_FILENAME)
        try:
            if inside:
                config.load_incluster_config(client_configuration=made)  # type: ignore[no-untyped-call] # has no types
            else:
                file, context = self._kubeconfig or None, self._context or None
                config.load_kube_config(file, context, client_configuration=made)  # type: ignore[no-untyped-call] # has no types
        except Exception as error:  # an invalid file can raise anything in the client
            where = harmless(self._kubeconfig, 200) or ("the service account" if inside else "~/.kube/config")
            cause = f"it cannot be used ({harmless(str(error) or type(error).__name__, _WIDTH)})"
            raise ClusterError(f"kubeconfig {where}", cause, "Give the path of one that kubectl accepts.") from error
        # urllib3 itself would sleep as long as a Retry-After says, and follow redirects elsewhere
        made.retries = False
        return made


class _Refused(Exception):
    """An error, and whether a retry may succeed `soon`, after `pause` seconds if the cluster says so."""

    def __init__(self, error: ClusterError, soon: bool = False, pause: float | None = None) -> None:
        super().__init__(str(error))
        self.error, self.soon, self.pause, self.status = error, soon, pause, error.status


def _read(response: urllib3.BaseHTTPResponse, until: float, tail: int) -> bytes:
    """Return the body of an answer, or its last `tail` bytes. `TimeoutError` when it is incomplete at `until`, however
    slowly it drips."""
    kept = bytearray()
    try:
        while chunk := response.read1(1 << 16):
            kept += chunk
            if time.monotonic() > until:
                raise TimeoutError
            if tail:
                del kept[:-tail]
            elif len(kept) > ANSWER_LIMIT:
                raise OSError(f"an answer has more than {ANSWER_LIMIT >> 20} MiB")
        response.release_conn()
        return bytes(kept)
    except BaseException:
        response.close()  # else the rest would be taken for the next answer
        raise


def _decoded(answer: bytes, kind: type[_Answer]) -> _Answer:
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        cause = f"returned an answer that is not from its API ({harmless(str(error), 120)})"
        raise ClusterError("the Kubernetes cluster", cause, "Check the address in the kubeconfig.") from error


def _page(answer: bytes, kind: type[_Item]) -> tuple[list[_Item], str]:
    page: _Page[_Item] = _decoded(answer, _LISTS[kind])
    return page.items or [], page.metadata.continued or ""


def _unanswered(thing: str, error: Exception, seconds: float) -> _Refused:
    late = isinstance(error, (urllib3.exceptions.TimeoutError, TimeoutError))
    if late and not isinstance(error, urllib3.exceptions.NewConnectionError):  # urllib3: a refusal is late, too
        cause = f"does not answer within {seconds:g} s"
        step = "Check its API server and the network in between."
        return _Refused(ClusterError(thing, cause, step, passing=True))
    cause = f"cannot be reached ({harmless(str(error), _WIDTH)})"
    step = "Check whether it is running, and the address in the kubeconfig."
    return _Refused(ClusterError(thing, cause, step, passing=True), soon=True)


def _not_safe(thing: str, why: str) -> ClusterError:
    cause = f"no secure connection can be made ({harmless(why, _WIDTH)})"
    return ClusterError(thing, cause, "Check the certificate authority and the address in the kubeconfig.")


def _refusal(thing: str, status: int, text: bytes) -> ClusterError:
    """Return the error for a status other than 2xx, with the cluster's words."""
    try:
        said = msgspec.json.decode(text, type=_Status).message
    except (msgspec.MsgspecError, RecursionError, ValueError):
        said = text.decode(errors="replace")
    words = harmless(" ".join(said.split()), _WIDTH) or "no reason given"
    return ClusterError(thing, f"answers {status}: {words}", _advice(status, words), status, status in _PASSING)


def _advice(status: int, words: str) -> str:
    if status == http.HTTPStatus.FORBIDDEN and "quota" in words:
        return "Raise the quota of the namespace, or choose another namespace."
    if status == http.HTTPStatus.FORBIDDEN and "being terminated" in words:
        return "Wait until the namespace is gone and create it again, or choose another one."
    if status == http.HTTPStatus.FORBIDDEN:
        return "Give the account the roles that docs/nodes.md lists."
    if status == http.HTTPStatus.UNAUTHORIZED:
        return "Renew the credentials of the kubeconfig."
    if status == http.HTTPStatus.NOT_FOUND and words.startswith("namespaces"):
        return "Create the namespace, or choose another one."
    if status in _PASSING:
        return "Try again later, and check its API server if that does not help."
    return "Check the cluster's message and its admission policies."


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None
