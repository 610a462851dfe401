"""A local server that speaks the part of the Kubernetes API that node tests and cordons need.

It checks every request against the published schema, grants the documented rights only, schedules pods, and runs the
command of a Job as a process of this machine. Nodes can be made to fail in the ways of `Fault`.
"""

import contextlib
import copy
import json
import os
import signal
import ssl
import subprocess
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import jsonschema
import regex
import yaml

from logdoctor.nodes.launch import kubernetes as launcher
from tests import waiting

Fault = Literal[
    "image",  # the image cannot be pulled
    "slow image",  # its pull lasts until `pulled` is set
    "no python",  # the container's command does not exist
    "evicted",  # the kubelet evicts the pod in the middle of the test
    "killed",  # something kills the command
    "out of memory",  # the pod's limit is reached
    "deleted",  # somebody deletes the pod in the middle of the test
    "gone",  # the node goes away in the middle of the test
    "no log",  # the API server does not reach the kubelet
    "quota",  # the Job's pod is forbidden
    "full",  # other pods hold the GPUs
    "hangs",  # the process is stopped
]
SCHEMA = json.loads((Path(__file__).with_name("kube_schema") / "kubernetes.json").read_text())
NAMESPACE = "tests"

NAME_FORM = regex.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_KEY = regex.compile(r"(?:[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
VALUE_FORM = regex.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_QUANTITY = regex.compile(r"[0-9]+(?:\.[0-9]+)?(?:[EPTGMk]i?|Ki|m)?")
_STARTED = b"logdoctor-probe started"
_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


class Refusal(NamedTuple):
    """What the server answers to requests of a method whose path contains some text, so many times."""

    method: str
    path: str
    status: int
    message: str
    times: int = 1_000_000
    headers: Mapping[str, str] = {}


class Seen(NamedTuple):
    """A request that came."""

    method: str
    path: str
    query: dict[str, str]
    body: Any


class Problem(Exception):
    """An answer other than 2xx."""

    def __init__(self, status: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.headers = status, reason, message, headers or {}


def documented_rules() -> list[dict[str, list[str]]]:
    """The rights that the launcher's docstring tells people to grant."""
    text = launcher.__doc__ or ""
    snippet = regex.search(r"\n\n((?: {4}.*\n)+)", text)[1]
    return [rule for role in yaml.safe_load_all(textwrap.dedent(snippet)) for rule in role["rules"]]


class KubeServer:
    """A cluster on loopback, for as long as the `with` block lasts. `wrong` lists what was wrong with requests."""

    def __init__(self, folder: Path, tls: tuple[str, str] | None = None) -> None:
        self.folder = folder
        self.rules: list[dict[str, list[str]]] = documented_rules()
        self.namespaces = {NAMESPACE}
        self.nodes: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, PodRun] = {}
        self.events: list[dict[str, Any]] = []
        self.faults: dict[str, Fault] = {}
        self.refusals: list[Refusal] = []
        self.seen: list[Seen] = []
        self.wrong: list[str] = []
        self.before_patch: Callable[[dict[str, Any]], None] = lambda node: None
        self.before_job: Callable[[dict[str, Any]], None] = lambda job: None
        self.swallows_patches = False  # what a webhook can do
        self.hold: Callable[[Seen], object] = lambda seen: None  # called before a request is looked at
        self.commands = 0  # that were started
        self.pulled = threading.Event()
        self.lock = threading.RLock()
        self.closed = threading.Event()
        self._version = 100
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.kube = self
        self.scheme = "http"
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
            self.scheme = "https"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> "KubeServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.closed.set()
        for pod in list(self.pods.values()):
            pod.kill(signal.SIGKILL)

    def stop(self) -> None:
        """No connection is taken any more."""
        self._http.shutdown()
        self._http.server_close()

    def add_node(self, name: str, address: str = "", gpus: int = 0, **labels: str) -> None:
        """A node that is ready; `_` and `__` in the names of labels stand for `.` and `/`."""
        keys = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
        self.nodes[name] = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "resourceVersion": self.version(),
                "labels": {"kubernetes.io/hostname": f"host-of-{name}", **keys},
                "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
            },
            "spec": {"podCIDR": "10.0.0.0/24"},
            "status": {
                "addresses": [
                    {"type": "Hostname", "address": name},
                    {"type": "InternalIP", "address": address or "127.0.0.1"},
                ],
                "allocatable": {"cpu": "8", **({"nvidia.com/gpu": str(gpus)} if gpus else {})},
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "is posting"}],
            },
        }

    def version(self) -> str:
        with self.lock:
            self._version += 1
            return str(self._version)

    def not_ready(self, name: str) -> None:
        """The kubelet of a node does not post its status any more."""
        ready = self.nodes[name]["status"]["conditions"][0]
        ready |= {"status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}

    def kubeconfig(self, **cluster: Any) -> str:
        """The path of a kubeconfig for this cluster."""
        path = self.folder / "kubeconfig"
        server = f"{self.scheme}://127.0.0.1:{self._http.server_port}"
        given = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "logdoctor"}}],
            "clusters": [{"name": "here", "cluster": {"server": server, **cluster}}],
            "users": [{"name": "logdoctor", "user": {"token": "s3cret"}}],
        }
        path.write_text(yaml.safe_dump(given))
        return str(path)

    def looks(self) -> int:
        """How often it was asked for pods."""
        return sum(seen.path.endswith("/pods") for seen in list(self.seen))

    def processes(self) -> list[int]:
        """The commands of pods that still run."""
        return [pod.process.pid for pod in list(self.pods.values()) if pod.process and pod.process.poll() is None]

    # Requests

    def answer(self, seen: Seen) -> Any:
        """What a request is answered with: an object, or the bytes of a log; `Problem` otherwise."""
        with self.lock:
            self.seen.append(seen)
            operation, names = self._operation(seen)
            for number, refusal in enumerate(self.refusals):
                if refusal.method == seen.method and refusal.path in seen.path and refusal.times > 0:
                    self.refusals[number] = refusal._replace(times=refusal.times - 1)
                    raise Problem(refusal.status, "Refused", refusal.message, refusal.headers)
            for key in seen.query.keys() - set(SCHEMA["operations"][operation]):
                self._bad(f"{operation}: no parameter {key}")
            self._check_rights(seen, names)
            if names.get("namespace", NAMESPACE) not in self.namespaces:
                raise Problem(404, "NotFound", f'namespaces "{names["namespace"]}" not found')
            return self._answer(operation, names, seen)

    def _operation(self, seen: Seen) -> tuple[str, dict[str, str]]:
        for operation in SCHEMA["operations"]:
            method, path = operation.split(" ")
            match = regex.fullmatch(regex.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path), seen.path)
            if match and method == seen.method:
                return operation, match.groupdict()
        raise Problem(404, "NotFound", "the server could not find the requested resource")

    def _check_rights(self, seen: Seen, names: Mapping[str, str]) -> None:
        group = "batch" if seen.path.startswith("/apis/batch/") else ""
        resource = seen.path.split("/namespaces/")[-1].split("/")[1] if "/namespaces/" in seen.path else "nodes"
        resource += "/log" if seen.path.endswith("/log") else ""
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(
            seen.method, "get" if "name" in names else "list"
        )
        for rule in self.rules:
            if group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]:
                return
        where = f' in the namespace "{names["namespace"]}"' if "namespace" in names else " at the cluster scope"
        full = f"{resource}.{group}" if group else resource
        what = f'User "logdoctor" cannot {verb} resource "{resource}" in API group "{group}"{where}'
        raise Problem(403, "Forbidden", f"{full} is forbidden: {what}")

    def _answer(self, operation: str, names: dict[str, str], seen: Seen) -> Any:
        match operation.removeprefix("GET ").replace("/namespaces/{namespace}", ""):
            case "/api/v1/nodes":
                return self._list(list(self.nodes.values()), seen, "NodeList")
            case "/api/v1/nodes/{name}":
                return self._named(self.nodes, names["name"], "nodes")
            case "PATCH /api/v1/nodes/{name}":
                return self._patch(self._named(self.nodes, names["name"], "nodes"), seen)
            case "POST /apis/batch/v1/jobs":
                return self._create(names["namespace"], seen.body)
            case "DELETE /apis/batch/v1/jobs/{name}":
                return self._delete(self._named(self.jobs, names["name"], "jobs.batch"), seen)
            case "/apis/batch/v1/jobs":
                return self._list(self._in(names, self.jobs.values()), seen, "JobList")
            case "/api/v1/pods":
                for pod in self.pods.values():
                    if self._in(names, [pod.object]):
                        pod.looked_at.set()
                return self._list(self._in(names, [pod.object for pod in self.pods.values()]), seen, "PodList")
            case "/api/v1/events":
                return self._list(self.events, seen, "EventList")
            case "/api/v1/pods/{name}/log":
                return self._named(self.pods, names["name"], "pods").log(seen.query)
        raise AssertionError(operation)

    def _in(self, names: Mapping[str, str], objects: Any) -> list[dict[str, Any]]:
        return [each for each in objects if each["metadata"]["namespace"] == names["namespace"]]

    def _named(self, objects: Mapping[str, Any], name: str, kind: str) -> Any:
        if name not in objects:
            raise Problem(404, "NotFound", f'{kind} "{name}" not found')
        return objects[name]

    def _list(self, objects: list[dict[str, Any]], seen: Seen, kind: str) -> dict[str, Any]:
        found = [each for each in objects if _selected(each, seen.query)]
        begin = int(seen.query.get("continue", "0"))
        end = begin + int(seen.query.get("limit", "1000000"))
        more = {"continue": str(end), "remainingItemCount": len(found) - end} if end < len(found) else {}
        metadata = {"resourceVersion": str(self._version), **more}
        return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "items": copy.deepcopy(found[begin:end])}

    def _patch(self, node: dict[str, Any], seen: Seen) -> dict[str, Any]:
        self._valid(seen.body, "V1Node", partial=True)
        self.before_patch(node)
        wanted = seen.body.get("metadata", {}).get("resourceVersion")
        if wanted is not None and wanted != node["metadata"]["resourceVersion"]:
            message = "the object has been modified; please apply your changes to the latest version and try again"
            raise Problem(409, "Conflict", f'Operation cannot be fulfilled on nodes "{seen.path}": {message}')
        merged = merge(node, seen.body)
        self._valid(merged, "V1Node")
        if self.swallows_patches:
            return copy.deepcopy(node)
        self._valid_metadata(merged["metadata"])
        merged["metadata"]["resourceVersion"] = self.version()
        node.clear()
        node.update(merged)
        answer = copy.deepcopy(node)
        self._keep_taint(node)
        return answer

    def _keep_taint(self, node: dict[str, Any]) -> None:
        """What the node lifecycle controller does a moment later."""
        taints = [each for each in node["spec"].get("taints") or [] if each["key"] != _UNSCHEDULABLE["key"]]
        taints += [dict(_UNSCHEDULABLE)] if node["spec"].get("unschedulable") else []
        if taints != (node["spec"].get("taints") or []):
            node["spec"]["taints"] = taints
            node["metadata"]["resourceVersion"] = self.version()
        if not taints:  # what is empty is left out
            node["spec"].pop("taints", None)

    def _create(self, namespace: str, job: dict[str, Any]) -> dict[str, Any]:
        self._valid(job, "V1Job")
        self._valid_job(job)
        self.before_job(job)
        name = job["metadata"]["name"]
        if name in self.jobs:
            raise Problem(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
        made = copy.deepcopy(job)
        made["metadata"] |= {"namespace": namespace, "resourceVersion": self.version(), "uid": f"uid-{name}"}
        made["status"] = {"startTime": _now()}
        self.jobs[name] = made
        pod = PodRun(self, made)
        threading.Thread(target=pod.run, daemon=True).start()
        return made

    def _delete(self, job: dict[str, Any], seen: Seen) -> dict[str, Any]:
        self._valid(seen.body or {}, "V1DeleteOptions")
        policy = (seen.body or {}).get("propagationPolicy") or seen.query.get("propagationPolicy") or "Orphan"
        if policy not in ("Background", "Foreground", "Orphan"):
            self._bad(f"propagationPolicy {policy}")
        name = job["metadata"]["name"]
        del self.jobs[name]
        if policy != "Orphan":
            for pod in list(self.pods.values()):
                if pod.job is job:
                    pod.delete()
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    # Checks

    def _bad(self, message: str) -> None:
        """A client of ours must never send this, so the tests of it fail in the end, too."""
        self.wrong.append(message)
        raise Problem(400, "BadRequest", message)

    def _valid(self, body: Any, kind: str, partial: bool = False) -> None:
        definitions = PARTIAL if partial else SCHEMA["definitions"]
        whole = {"$ref": f"#/definitions/{kind}", "definitions": definitions}
        error = jsonschema.exceptions.best_match(jsonschema.Draft7Validator(whole).iter_errors(body))
        if error is not None:
            self._bad(f"{kind} at {'/'.join(map(str, error.absolute_path))}: {error.message[:300]}")

    def _valid_metadata(self, metadata: Mapping[str, Any]) -> None:
        for key, value in (metadata.get("labels") or {}).items():
            if not _KEY.fullmatch(key) or not VALUE_FORM.fullmatch(value):
                self._bad(f"label {key}={value}")
        for key in metadata.get("annotations") or {}:
            if not _KEY.fullmatch(key):
                self._bad(f"annotation {key}")

    def _valid_job(self, job: dict[str, Any]) -> None:
        spec, template = job["spec"], job["spec"]["template"]
        pod = template["spec"]
        name = job["metadata"]["name"]
        if not NAME_FORM.fullmatch(name) or len(name) > 57:
            self._bad(f"name {name}")
        self._valid_metadata(job["metadata"])
        self._valid_metadata(template["metadata"])
        wrong = {
            "apiVersion": job.get("apiVersion") != "batch/v1" or job.get("kind") != "Job",
            "restartPolicy": pod.get("restartPolicy") not in ("Never", "OnFailure"),
            "dnsPolicy": pod.get("dnsPolicy") not in ("Default", "ClusterFirst", "ClusterFirstWithHostNet"),
            "activeDeadlineSeconds": spec.get("activeDeadlineSeconds", 1) < 1,
            "mounts": {each["name"] for each in pod["containers"][0].get("volumeMounts", ())}
            - {each["name"] for each in pod.get("volumes", ())},
            "medium": any(each["emptyDir"].get("medium") not in ("", "Memory") for each in pod.get("volumes", ())),
            "tolerations": any(
                each.get("operator", "Equal") not in ("Exists", "Equal") or (each.get("value") and "key" not in each)
                for each in pod.get("tolerations", ())
            ),
            "limits": not all(
                _QUANTITY.fullmatch(each) for each in pod["containers"][0]["resources"].get("limits", {}).values()
            ),
            "sizeLimit": not all(_QUANTITY.fullmatch(each["emptyDir"]["sizeLimit"]) for each in pod.get("volumes", ())),
        }
        for field in (field for field, bad in wrong.items() if bad):
            self._bad(f"Job.batch {name} is invalid: {field}")


class PodRun:
    """The pod of a Job: scheduled, run and ended as its node's fault says."""

    def __init__(self, kube: KubeServer, job: dict[str, Any]) -> None:
        self.kube = kube
        self.job = job
        self.name = f"{job['metadata']['name']}-x{kube.version()[-4:]}"
        self.process: subprocess.Popen[bytes] | None = None
        self.deleted, self.looked_at = threading.Event(), threading.Event()
        self.file = kube.folder / f"{self.name}.log"
        self.file.touch()
        template = job["spec"]["template"]
        self.spec = template["spec"]
        self.container = self.spec["containers"][0]
        labels = {**template["metadata"]["labels"], "batch.kubernetes.io/job-name": job["metadata"]["name"]}
        metadata = {**template["metadata"], "name": self.name, "labels": labels, "uid": f"uid-{self.name}"}
        metadata["namespace"] = job["metadata"]["namespace"]
        self.object: dict[str, Any] = {"metadata": metadata, "spec": dict(self.spec), "status": {"phase": "Pending"}}

    def run(self) -> None:
        """From the Job's creation to the pod's end."""
        wanted = self.spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        target = wanted["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
        if self.kube.faults.get(target) == "quota":
            message = f'Error creating: pods "{self.name}" is forbidden: exceeded quota: small, requested: pods=1'
            about = {"kind": "Job", "name": self.job["metadata"]["name"]}
            event = {"type": "Warning", "reason": "FailedCreate", "message": message, "involvedObject": about}
            with self.kube.lock:
                self.kube.events.append(event)
            return
        with self.kube.lock:
            if self.kube.jobs.get(self.job["metadata"]["name"]) is not self.job:
                return
            self.kube.pods[self.name] = self
        node = self._schedule(target)
        if node is None or self._stays_pending(target):
            return
        self._start()
        if self.process is not None:
            self._accompany(self.kube.faults.get(target), target)

    def log(self, query: Mapping[str, str]) -> bytes:
        """The end of what the command wrote."""
        fault = self.kube.faults.get(self.object["spec"].get("nodeName", ""))
        if fault in ("no log", "gone"):
            raise Problem(500, "InternalError", "Get https://kubelet:10250/containerLogs: dial tcp: i/o timeout")
        if query.get("container") != self.container["name"]:
            raise Problem(400, "BadRequest", f"container {query.get('container')} is not valid for pod {self.name}")
        if "containerStatuses" not in self.object["status"]:
            raise Problem(400, "BadRequest", f'container "probe" in pod "{self.name}" is waiting to start')
        lines = self.file.read_bytes().splitlines(keepends=True)
        return b"".join(lines[-int(query["tailLines"]) :])

    def delete(self) -> None:
        """Terminates the pod gracefully and takes it away."""
        self.object["metadata"]["deletionTimestamp"] = _now()
        self.deleted.set()
        threading.Thread(target=self._end_gracefully, daemon=True).start()

    def kill(self, number: int) -> None:
        """A signal to the command, if it runs."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def _end_gracefully(self) -> None:
        self.kill(signal.SIGCONT)
        self.kill(signal.SIGTERM)
        if self.process is not None:
            try:
                self.process.wait(self.spec.get("terminationGracePeriodSeconds", 30))
            except subprocess.TimeoutExpired:
                self.kill(signal.SIGKILL)
                self.process.wait()
        with self.kube.lock:
            self.kube.pods.pop(self.name, None)

    def _schedule(self, target: str) -> dict[str, Any] | None:
        while not self.deleted.is_set() and not self.kube.closed.is_set():
            with self.kube.lock:
                node = self.kube.nodes.get(target)
                why = self._why_not(node, target)
                if node is not None and not why:
                    self.object["spec"]["nodeName"] = target
                    self._condition("True", "", "")
                    return node
                text = f"0/{len(self.kube.nodes)} nodes are available: 1 {why}. no new claims to deallocate"
                self._condition("False", "Unschedulable", text)
            time.sleep(0.02)
        return None

    def _why_not(self, node: dict[str, Any] | None, target: str) -> str:
        if node is None:
            return "node(s) didn't match Pod's node affinity/selector"
        tolerated = {"operator": "Exists"} in self.spec.get("tolerations", ())
        if (node["spec"].get("taints") or node["spec"].get("unschedulable")) and not tolerated:
            return "node(s) had untolerated taint(s)"
        wanted = int(self.container["resources"].get("limits", {}).get("nvidia.com/gpu", "0"))
        free = int(node["status"]["allocatable"].get("nvidia.com/gpu", "0"))
        if wanted > free or self.kube.faults.get(target) == "full":
            return "Insufficient nvidia.com/gpu"
        return ""

    def _condition(self, status: str, reason: str, message: str) -> None:
        given = {"type": "PodScheduled", "status": status, "reason": reason, "message": message}
        self.object["status"]["conditions"] = [given]

    def _stays_pending(self, target: str) -> bool:
        fault = self.kube.faults.get(target)
        if self.kube.nodes[target]["status"]["conditions"][0]["status"] != "True":
            return True
        if fault == "image":
            self._state({"waiting": {"reason": "ContainerCreating"}})
            time.sleep(0.1)
            pull = f'failed to pull and unpack image "{self.container["image"]}": not found'
            self._state({"waiting": {"reason": "ErrImagePull", "message": pull}})
            return True
        if fault == "slow image":
            self._state({"waiting": {"reason": "ContainerCreating"}})
            while not self.deleted.is_set() and not self.kube.closed.is_set():
                if self.kube.pulled.wait(0.02):
                    break
        return self.deleted.is_set()

    def _start(self) -> None:
        command = [word.replace("$$", "$") for word in self.container["command"]]
        if self.kube.faults.get(self.object["spec"]["nodeName"]) == "no python":
            command[0] = "/nonexistent/python3"
        try:
            with self.file.open("ab") as out:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
                )
        except OSError as error:
            words = f'exec: "{command[0]}": {error.strerror}'
            ended = {"exitCode": 128, "reason": "StartError", "message": f"failed to start: {words}"}
            self._state({"terminated": ended}, phase="Failed")
            return
        self.kube.commands += 1
        self._state({"running": {"startedAt": _now()}}, phase="Running")

    def _accompany(self, fault: Fault | None, target: str) -> None:
        assert self.process is not None
        deadline = threading.Timer(self.job["spec"].get("activeDeadlineSeconds", 1e6), self.delete)
        deadline.daemon = True
        deadline.start()
        if fault in ("evicted", "killed", "out of memory", "deleted", "gone", "hangs"):
            while self.process.poll() is None and _STARTED not in self.file.read_bytes():
                time.sleep(0.02)
            self._strike(fault, target)
        code = self.process.wait()
        deadline.cancel()
        if fault == "gone" or self.object["status"]["phase"] == "Failed":
            return
        ended = {"exitCode": code if code >= 0 else 128 - code, "reason": "Completed" if code == 0 else "Error"}
        ended |= {"reason": "OOMKilled"} if fault == "out of memory" else {}
        self._state({"terminated": ended}, phase="Succeeded" if code == 0 else "Failed")

    def _strike(self, fault: Fault, target: str) -> None:
        if fault == "hangs":
            self.kill(signal.SIGSTOP)
            return
        if fault == "evicted":
            with self.kube.lock:
                message = "The node was low on resource: memory."
                self.object["status"] |= {"phase": "Failed", "reason": "Evicted", "message": message}
        if fault == "gone":
            self.kube.not_ready(target)
        if fault == "deleted":
            self.looked_at.wait(300)  # however busy the machine is: what nobody has seen is not missed
            self.delete()
        else:
            self.kill(signal.SIGKILL)

    def _state(self, state: dict[str, Any], phase: str = "Pending") -> None:
        with self.kube.lock:
            status = {"name": self.container["name"], "state": state, "ready": False, "restartCount": 0}
            sidecar = {"name": "sidecar", "state": {"running": {}}, "ready": True}
            self.object["status"] |= {"phase": phase, "containerStatuses": [sidecar, status]}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    kube: KubeServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def _serve(self) -> None:
        kube = self.server.kube
        length = int(self.headers.get("Content-Length") or 0)
        text = self.rfile.read(length)
        url = urlsplit(self.path)
        seen = Seen(self.command, url.path, dict(parse_qsl(url.query)), json.loads(text) if text else None)
        kube.hold(seen)
        try:
            if self.headers.get("Authorization") != "Bearer s3cret":
                raise Problem(401, "Unauthorized", "Unauthorized")
            kinds = {"PATCH": "application/merge-patch+json", "POST": "application/json", "DELETE": "application/json"}
            if text and self.headers.get("Content-Type") != kinds[self.command]:
                raise Problem(415, "UnsupportedMediaType", f"the body is {self.headers.get('Content-Type')}")
            answer, status, more = kube.answer(seen), 201 if self.command == "POST" else 200, {}
        except Problem as problem:
            answer = {
                **{"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"},
                **{"message": problem.message, "reason": problem.reason, "code": problem.status},
            }
            status, more = problem.status, problem.headers
        self._send(status, answer, more)

    def _send(self, status: int, answer: Any, more: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in more.items():
            self.send_header(key, value)
        if isinstance(answer, bytes):  # logs come in chunks
            self.send_header("Content-Type", "text/plain")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in [answer[at : at + 5000] for at in range(0, len(answer), 5000)] + [b""]:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            return
        body = json.dumps(answer).encode()
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = do_DELETE = _serve

    def log_message(self, *_: object) -> None:
        """Requests are in `seen`."""


def merge(target: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = copy.deepcopy(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def _selected(each: Mapping[str, Any], query: Mapping[str, str]) -> bool:
    labels = each.get("metadata", {}).get("labels", {})
    for term in filter(None, query.get("labelSelector", "").split(",")):
        key, _, value = term.partition("=")
        if key not in labels or ("=" in term and labels[key] != value):
            return False
    about = each.get("involvedObject", {})
    fields = {"involvedObject.kind": about.get("kind"), "involvedObject.name": about.get("name")}
    fields["type"] = each.get("type")
    terms = (term.partition("=") for term in filter(None, query.get("fieldSelector", "").split(",")))
    return all(fields[key] == value for key, _, value in terms)


def _without_required(schema: Any) -> Any:
    """The schema of a merge patch: every field may be missing, or null to take it away."""
    if isinstance(schema, list):
        return [_without_required(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    loose = {key: _without_required(value) for key, value in schema.items() if key != "required"}
    if isinstance(loose.get("properties"), dict):
        loose["properties"] = {name: _or_null(each) for name, each in loose["properties"].items()}
    if isinstance(loose.get("additionalProperties"), dict):
        loose["additionalProperties"] = _or_null(loose["additionalProperties"])
    return loose


def _or_null(schema: Any) -> Any:
    return {"anyOf": [schema, {"type": "null"}]}


PARTIAL = _without_required(SCHEMA["definitions"])


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextlib.contextmanager
def running(folder: Path, *nodes: str, tls: tuple[str, str] | None = None) -> Iterator[KubeServer]:
    """A cluster of these nodes, each with a loopback address of its own. In the end no request was wrong, no Job and no
    pod is left, and no command runs."""
    with KubeServer(folder, tls) as kube:
        for number, name in enumerate(nodes):
            kube.add_node(name, f"127.0.0.{2 + number}")
        yield kube
        assert kube.wrong == []
        assert kube.jobs == {}
        waiting.until(lambda: not kube.pods and not kube.processes(), "no pod is left")
