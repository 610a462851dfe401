"""Nodes of a Kubernetes cluster: one Job for each node of a world.

The RBAC that it needs, in its namespace (`nodes` are cluster-wide; `patch` is only for cordons):

    apiVersion: rbac.authorization.k8s.io/v1
    kind: Role
    metadata: {name: logdoctor-node-tests, namespace: logdoctor}
    rules:
    - {apiGroups: [batch], resources: [jobs], verbs: [create, list, delete]}
    - {apiGroups: [""], resources: [pods], verbs: [list]}
    - {apiGroups: [""], resources: [pods/log], verbs: [get]}
    - {apiGroups: [""], resources: [events], verbs: [list]}
    ---
    apiVersion: rbac.authorization.k8s.io/v1
    kind: ClusterRole
    metadata: {name: logdoctor-nodes}
    rules:
    - {apiGroups: [""], resources: [nodes], verbs: [get, list, patch]}

A Job is pinned by a node affinity on `metadata.name`, as the DaemonSet controller does: it goes through the scheduler,
which counts GPUs, and `nodeName` would not; a `kubernetes.io/hostname` label need not be the node's name. The pod
tolerates every taint, so that cordoned nodes can be tested. Nodes of a world meet by the addresses of their hosts.
"""

import asyncio
import concurrent.futures
import hashlib
import math
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import regex
import structlog

from logdoctor.errors import LaunchError
from logdoctor.nodes.kubernetes_api import Cluster, ClusterError, KubeNode, Pod, PodStatus, Terminated
from logdoctor.nodes.launching import OUTPUT_LIMIT, STARTED, LaunchTask, ProbeAnswer, result
from logdoctor.nodes.topology import GROUP_LABELS, label_groups
from logdoctor.text import harmless
from logdoctor.types.nodes import Node

GPU_LABEL = "nvidia.com/gpu.product"
"""The label of NVIDIA's GPU feature discovery."""
CONTAINER = "probe"
KEPT_SECONDS = 600
"""Seconds for which the cluster keeps an ended Job that nobody deletes."""
MARGIN = 30
"""Seconds after a world's deadline at which the cluster ends its remaining Jobs."""

_THREADS = 16
_TIDY_SECONDS = 8.0
_DOUBT_SECONDS = 2.0
_SWEEP_SECONDS = 20.0
_LONGEST_PAUSE = 15.0
_LOG_LINES = 2000
_NAMES = 3
_WIDTH = 300
_BROKEN = {
    *("CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff"),
    *("ImageInspectError", "InvalidImageName", "RegistryUnavailable", "RunContainerError", "SignatureValidationFailed"),
}
"""Reasons of a waiting container that do not go away within a world's seconds."""
_NOT_RUN = {"ContainerCannotRun", "ContainerStatusUnknown", "CreateContainerError", "OOMKilled", "StartError"}
"""Reasons of a container's end that are due to the image or the pod's limits, not the node."""
_LABEL = regex.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_NO_LABEL = regex.compile(r"[^A-Za-z0-9._-]+")
_NO_NAME = regex.compile(r"[^a-z0-9]+")

_Made = TypeVar("_Made")
log = structlog.get_logger()


class PodOptions(NamedTuple):
    """The pods that the probes run in.

    `image` needs a Python with torch, and should be on the nodes already. `resources` are limits of the container, like
    `{"nvidia.com/gpu": "8", "rdma/hca": "1"}`; `shared_memory` is the size of `/dev/shm`, which NCCL needs.
    `capabilities` are added (RDMA needs IPC_LOCK); `privileged` grants all.
    """

    image: str
    namespace: str = "default"
    resources: Mapping[str, str] = {}
    shared_memory: str = "1Gi"
    capabilities: tuple[str, ...] = ()
    privileged: bool = False
    service_account: str = ""
    pull_secrets: tuple[str, ...] = ()
    runtime_class: str = ""
    priority_class: str = ""


class Sight(NamedTuple):
    """What the cluster says about a pod. `lost`: it proves nothing about its node, and `why` says what happened."""

    state: Literal["waiting", "running", "ended", "lost"]
    why: str = ""
    exit: int | None = None


class KubernetesLauncher:
    """Starts each node's probe as a Job of a Kubernetes cluster.

    `owner` separates the Jobs of two logdoctors in one namespace. `selector` is the label selector of the nodes used
    when none are named. A pod that does not run `startup` seconds after its Job was made is given up. `pause` are the
    seconds between two looks at the pods: one look for all worlds, and longer pauses when the cluster is slow.
    """

    name = "kubernetes"

    def __init__(
        self,
        cluster: Cluster,
        pod: PodOptions,
        owner: str = "logdoctor",
        selector: str = "",
        group_labels: Sequence[str] = GROUP_LABELS,
        startup: float = 60.0,
        pause: float = 1.0,
    ) -> None:
        self._cluster = cluster
        self._pod = pod
        self._owner = owner
        self._selector = selector
        self._group_labels = tuple(group_labels)
        self._startup = startup
        self._pause = pause
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="logdoctor-kubernetes")
        self._looking: asyncio.Task[dict[tuple[str, str], Pod]] | None = None
        self._look_took = 0.0
        self._tidying: set[asyncio.Task[None]] = set()

    async def inventory(self, names: Sequence[str]) -> list[Node]:
        """Return the nodes of these names, in their order; without names those of the selector. `LaunchError` for
        unknown ones, and when the cluster cannot be reached."""
        try:
            found = await self._asked(lambda: self._cluster.nodes("" if names else self._selector))
        except ClusterError as error:
            raise _launch_error(error) from error
        groups = label_groups({node.metadata.name: node.metadata.labels or {} for node in found}, self._group_labels)
        known = {node.metadata.name: node_of(node, groups.get(node.metadata.name, "")) for node in found}
        unknown = [name for name in names if name not in known]
        if unknown:
            several = f" and {len(unknown) - 1} more" if unknown[1:] else ""
            cause = f"the cluster has no such node{several}"
            raise LaunchError(f"node {unknown[0][:80]!r}", cause, "See `kubectl get nodes` for the names.")
        return [known[name] for name in names] if names else list(known.values())

    async def run(self, task: LaunchTask) -> list[ProbeAnswer]:
        """Return one answer for each node. A world ends early when one of its pods cannot run; all its Jobs are deleted
        however it ends. `LaunchError` when the cluster does not accept the Jobs or cannot be reached."""
        end = asyncio.get_running_loop().time() + task.deadline
        token = secrets.token_hex(4)
        members = [_Member(task, rank, token) for rank in range(len(task.nodes))]
        try:
            await self._create(members, end)
            await self._follow(members, end)
            answers = [self._answer(member) for member in members]
            return without_latecomers(task, await asyncio.gather(*answers), [member.ran_from for member in members])
        except ClusterError as error:
            raise _launch_error(error) from error
        finally:
            await _undisturbed(self._end(members))

    async def sweep(self, test: str) -> int:
        """Delete a test's leftover Jobs, wait for their pods to go, and return how many."""
        selector = f"logdoctor/owner={label(self._owner)},logdoctor/test={label(test)}"
        space = self._pod.namespace
        try:
            jobs = [job.metadata.name for job in await self._asked(lambda: self._cluster.jobs(space, selector))]
            ended = await asyncio.gather(*(self._asked(self._cluster.delete_job, space, name) for name in jobs))
            end = asyncio.get_running_loop().time() + _SWEEP_SECONDS
            while jobs and asyncio.get_running_loop().time() < end:
                if not await self._asked(lambda: self._cluster.pods(space, selector)):
                    break
                await asyncio.sleep(self._pause)
        except ClusterError as error:
            raise _launch_error(error) from error
        return sum(ended)

    async def close(self) -> None:
        """Wait until ended Jobs are deleted, and close the connections."""
        if self._tidying:
            await asyncio.wait(self._tidying, timeout=_TIDY_SECONDS)
        if self._looking is not None:
            self._looking.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._cluster.close()

    async def _asked(self, ask: Callable[..., _Made], *given: Any) -> _Made:
        return await asyncio.get_running_loop().run_in_executor(self._threads, ask, *given)

    async def _create(self, members: Sequence["_Member"], end: float) -> None:
        """Create all members' Jobs concurrently."""
        for member in members:
            member.creation = self._threads.submit(self._create_one, member)
        creations = [asyncio.wrap_future(member.creation) for member in members if member.creation is not None]
        try:
            async with asyncio.timeout_at(end):
                await asyncio.gather(*creations)
        except TimeoutError:
            step = "Check its API server, or test fewer nodes at once."
            raise LaunchError("the Kubernetes cluster", "did not accept the Jobs before the deadline", step) from None

    def _create_one(self, member: "_Member") -> None:
        for attempt in range(_NAMES):
            name = job_name(member.task, member.rank)
            member.jobs.append(name)
            try:
                return self._cluster.create_job(self._pod.namespace, member.job(name, self._pod, self._owner))
            except ClusterError as error:
                if error.status:
                    member.jobs.pop()  # there is no such Job, or it is not ours
                else:
                    member.doubtful = True
                if error.status != 409 or attempt + 1 == _NAMES:
                    raise

    async def _follow(self, members: Sequence["_Member"], end: float) -> None:
        """Poll the pods until all have ended, some cannot run, or time is up."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._startup
        trouble: ClusterError | None = None
        while loop.time() < end:
            try:
                async with asyncio.timeout_at(end):
                    pods = await self._look()
            except TimeoutError:
                break
            except ClusterError as error:
                if not error.passing:
                    raise
                trouble = error
                continue
            trouble, now = None, loop.time()
            for member in members:
                member.see(pods.get((member.token, str(member.rank))), now)
            states = {member.sight.state for member in members}
            if "waiting" in states:  # also when another is lost: this one might still run
                if now > give_up:
                    break
            elif "lost" in states or states == {"ended"}:
                break
        if trouble is not None:
            raise trouble

    async def _look(self) -> dict[tuple[str, str], Pod]:
        """Return the pods of all worlds by their labels `run` and `rank`, after a pause; concurrent callers share one
        look."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_once())
            self._looking.add_done_callback(lambda look: look.cancelled() or look.exception())
        return await asyncio.shield(self._looking)

    async def _look_once(self) -> dict[tuple[str, str], Pod]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(min(max(self._pause, 5 * self._look_took), _LONGEST_PAUSE))
        begun = loop.time()
        selector = f"logdoctor/owner={label(self._owner)}"
        pods = await self._asked(self._cluster.pods, self._pod.namespace, selector)
        self._look_took = loop.time() - begun
        labels = [pod.metadata.labels or {} for pod in pods]
        keys = [(each.get("logdoctor/run", ""), each.get("logdoctor/rank", "")) for each in labels]
        return dict(zip(keys, pods, strict=True))

    async def _answer(self, member: "_Member") -> ProbeAnswer:
        """Return the answer of one node, from the last look at its pod."""
        node = member.task.nodes[member.rank].name
        sight = member.sight
        if sight.state == "lost":
            return ProbeAnswer(node, started=False, launch_error=sight.why)
        if sight.state == "waiting":
            return ProbeAnswer(node, started=False, launch_error=await self._why_waiting(member))
        try:
            text = await self._asked(
                self._cluster.log, self._pod.namespace, member.pod, CONTAINER, _LOG_LINES, OUTPUT_LIMIT
            )
        except ClusterError as error:
            if sight.state == "running" and await self._is_gone(node):
                return ProbeAnswer(node, started=True, errors=b"the node went away in the middle of the test")
            return ProbeAnswer(node, started=False, launch_error=f"its log cannot be read: {error}")
        # a pod's log mixes output and errors; of the probe's lines only its answer is an object
        lines = text.splitlines(keepends=True)
        output = b"".join(line for line in lines if line.startswith(b"{") and b'"ok"' in line)
        errors = b"".join(line for line in lines if not line.startswith(b"{"))
        if sight.state == "ended" and not output and STARTED not in text and len(lines) < _LOG_LINES:
            last = harmless(lines[-1].decode(errors="replace"), _WIDTH) if lines else "it wrote nothing"
            why = f"its container ended with status {sight.exit} before the probe started ({last}). Check the image."
            return ProbeAnswer(node, started=False, errors=errors, exit=sight.exit, launch_error=why)
        return ProbeAnswer(node, started=True, output=output, errors=errors, exit=sight.exit)

    async def _why_waiting(self, member: "_Member") -> str:
        """Return why a pod did not run, as far as the cluster says."""
        node = member.task.nodes[member.rank].name
        said = [f"its pod did not start in time ({member.sight.why})"]
        try:
            if not member.pod and member.jobs:
                warnings = await self._asked(self._cluster.warnings, self._pod.namespace, "Job", member.jobs[-1])
                said += warnings[-1:]
            found = await self._asked(self._cluster.node, node)
            said += ["the cluster no longer knows the node"] if found is None else not_ready(found)
        except ClusterError as error:
            log.info("kubernetes.reason_unknown", node=node, cause=error.cause)
        return f"{'; '.join(said)}. See `kubectl describe` of the node and of the Job's events."

    async def _is_gone(self, node: str) -> bool:
        try:
            found = await self._asked(self._cluster.node, node)
        except ClusterError:
            return False
        return found is None or bool(not_ready(found))

    async def _end(self, members: Sequence["_Member"]) -> None:
        """Delete all Jobs of a world, including those just being created."""
        tidying = {asyncio.create_task(self._delete(member)) for member in members}
        self._tidying |= tidying
        for task in tidying:
            task.add_done_callback(self._tidying.discard)
        await asyncio.wait(tidying, timeout=_TIDY_SECONDS)  # an unreachable cluster ends them by their deadline

    async def _delete(self, member: "_Member") -> None:
        if member.creation is not None and not member.creation.cancel():
            await asyncio.gather(asyncio.wrap_future(member.creation), return_exceptions=True)
        for name in member.jobs:
            try:
                while not await self._asked(self._cluster.delete_job, self._pod.namespace, name) and member.doubtful:
                    member.doubtful = False
                    await asyncio.sleep(_DOUBT_SECONDS)
            except ClusterError as error:
                log.warning("kubernetes.job_left", job=name, cause=error.cause, ends_by_itself=True)


class _Member:
    """A node of a running world: its possible Jobs, and the last look at its pod."""

    def __init__(self, task: LaunchTask, rank: int, token: str) -> None:
        self.task = task
        self.rank = rank
        self.token = token
        self.jobs: list[str] = []
        self.doubtful = False  # the cluster may still create the last one
        self.creation: concurrent.futures.Future[None] | None = None
        self.pod = ""
        self.sight = Sight("waiting", "no pod was created")
        self.ran_from: float | None = None

    def job(self, name: str, pod: PodOptions, owner: str) -> dict[str, Any]:
        return job(self.task, self.rank, name, self.token, pod, owner)

    def see(self, pod: Pod | None, at: float) -> None:
        """Take in a look at the pod."""
        if pod is not None:
            self.pod = pod.metadata.name
            self.sight = sight(pod)
        elif self.pod and self.sight.state != "ended":
            self.sight = Sight("lost", "its pod was deleted by others in the middle of the test. Run the test again.")
        if self.ran_from is None and self.sight.state in ("running", "ended"):
            self.ran_from = at


def node_of(node: KubeNode, group: str) -> Node:
    """Return a cluster's node as a node to test: its internal address, its group, its GPU."""
    addresses = [each.address for each in node.status.addresses or () if each.type == "InternalIP" and each.address]
    address = addresses[0] if addresses else node.metadata.name
    return Node(node.metadata.name, address, group, (node.metadata.labels or {}).get(GPU_LABEL, ""))


def not_ready(node: KubeNode) -> list[str]:
    """Return one line on why a node is not ready; [] when it is."""
    for each in node.status.conditions or ():
        if each.type == "Ready" and each.status != "True":
            return [harmless(f"the node is not ready: {each.reason}: {each.message}", _WIDTH)]
    return []


def sight(pod: Pod) -> Sight:
    """Return how far a pod has come."""
    status = pod.status
    if pod.metadata.deletion_timestamp or any(
        each.type == "DisruptionTarget" and each.status == "True" for each in status.conditions or ()
    ):
        return _lost(status, "its pod was deleted or evicted by others. Run the test again.")
    state = next((each.state for each in status.container_statuses or () if each.name == CONTAINER), None)
    if state is not None and state.terminated is not None and not status.reason:
        return _end_of(state.terminated)
    if status.phase == "Failed" or (status.reason and status.phase == "Succeeded"):
        return _lost(status, "its pod failed. See `kubectl describe` of the node.")
    if state is not None and state.running is not None:
        return Sight("running")
    if state is not None and state.waiting is not None:
        return _waiting(state.waiting.reason or "", state.waiting.message or "")
    for each in status.conditions or ():
        if each.type == "PodScheduled" and each.status == "False":
            return Sight("waiting", harmless(f"{each.reason}: {each.message}", _WIDTH))
    return Sight("waiting", "the node has not started it")


def _waiting(reason: str, message: str) -> Sight:
    words = harmless(f"{reason}: {message}" if message else reason, _WIDTH)
    if reason in _BROKEN:
        step = "Check the image, and that the nodes can pull it." if "mage" in reason else "Check the pod's options."
        return Sight("lost", f"its container cannot run: {words}. {step}")
    return Sight("waiting", words)


def _end_of(ended: Terminated) -> Sight:
    if ended.reason in _NOT_RUN:
        step = "Check the image and the pod's limits."
        return Sight("lost", f"its container ended: {harmless(f'{ended.reason}: {ended.message}', _WIDTH)}. {step}")
    return Sight("ended", exit=ended.exit_code)


def _lost(status: PodStatus, otherwise: str) -> Sight:
    """Return the sight of a pod that the cluster removed."""
    if not status.reason:
        return Sight("lost", otherwise)
    words = harmless(f"{status.reason}: {status.message}", _WIDTH)
    return Sight("lost", f"the cluster ended its pod: {words}. See `kubectl describe` of the node.")


def without_latecomers(
    task: LaunchTask, answers: Sequence[ProbeAnswer], ran_from: Sequence[float | None]
) -> list[ProbeAnswer]:
    """Return the answers, with nodes that began too late in a failed world as not started.

    Kubernetes starts the pods of a world one by one. A slow image pull would look like a faulty network; in the node's
    next world the image is there. `ran_from` is when each was first seen running, by one clock.
    """
    began = [at for at in ran_from if at is not None]
    if len(began) < len(answers) or result(task, answers, 0.0).ended != "failed":
        return list(answers)
    late = [at - min(began) for at in began]
    return [
        ProbeAnswer(
            answer.node, started=False, launch_error=f"its pod started {after:.0f} s late. Pull the image beforehand."
        )
        if after > task.probe.seconds / 4
        else answer
        for answer, after in zip(answers, late, strict=True)
    ]


def job(task: LaunchTask, rank: int, name: str, token: str, pod: PodOptions, owner: str) -> dict[str, Any]:
    """Return the Job (batch/v1) that runs the probe on one node of a world."""
    node = task.nodes[rank].name
    labels = {
        "logdoctor/owner": label(owner),
        "logdoctor/test": label(task.test),
        "logdoctor/world": str(task.world.number),
        "logdoctor/node": label(node),
        "logdoctor/run": token,
        "logdoctor/rank": str(rank),
    }
    template = {
        "metadata": {
            # a sidecar would interfere with the node's network, and outlive the probe
            "labels": {**labels, "sidecar.istio.io/inject": "false"},
            "annotations": {
                "logdoctor/node": node,
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                "karpenter.sh/do-not-disrupt": "true",
            },
        },
        "spec": _pod_spec(task, rank, pod),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels, "annotations": {"logdoctor/node": node}},
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "activeDeadlineSeconds": math.ceil(task.deadline) + MARGIN,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": template,
        },
    }


def _pod_spec(task: LaunchTask, rank: int, pod: PodOptions) -> dict[str, Any]:
    node = task.nodes[rank].name
    pinned = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [pinned]}}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "affinity": {"nodeAffinity": required},
        "tolerations": [{"operator": "Exists"}],
        "hostNetwork": True,
        "dnsPolicy": "Default",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 5,
        "containers": [_container(task, rank, pod)],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": pod.shared_memory}}],
    }
    spec |= {"serviceAccountName": pod.service_account} if pod.service_account else {}
    spec |= {"imagePullSecrets": [{"name": name} for name in pod.pull_secrets]} if pod.pull_secrets else {}
    spec |= {"runtimeClassName": pod.runtime_class} if pod.runtime_class else {}
    spec |= {"priorityClassName": pod.priority_class} if pod.priority_class else {}
    return spec


def _container(task: LaunchTask, rank: int, pod: PodOptions) -> dict[str, Any]:
    added = {"capabilities": {"add": list(pod.capabilities)}} if pod.capabilities else {}
    return {
        "name": CONTAINER,
        "image": pod.image,
        "imagePullPolicy": "IfNotPresent",
        # Kubernetes expands $(NAME) in commands; $$ is a literal $
        "command": [word.replace("$", "$$") for word in task.command(rank, lifeline=False)],
        "resources": {"limits": dict(pod.resources)} if pod.resources else {},
        "securityContext": {"privileged": True} if pod.privileged else {"allowPrivilegeEscalation": False, **added},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }


def job_name(task: LaunchTask, rank: int) -> str:
    """Return a unique Job name: lower case, at most 57 characters, so that its pods' names fit, too."""
    test = _NO_NAME.sub("-", task.test.lower())[:16].strip("-") or "test"
    return f"logdoctor-{test}-w{task.world.number}-r{rank}-{secrets.token_hex(4)}"


def label(text: str) -> str:
    """Return the text as a label value; one that is too long or invalid is cut and gets a digest of the whole."""
    if _LABEL.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]
    kept = _NO_LABEL.sub("-", text)[:48].strip("-._")
    return f"{kept}-{digest}" if kept else digest


def _launch_error(error: ClusterError) -> LaunchError:
    return LaunchError(error.thing, error.cause, error.next_step)


async def _undisturbed(work: Coroutine[Any, Any, None]) -> None:
    """Finish the work even when cancelled meanwhile; only then raise the cancellation."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()
