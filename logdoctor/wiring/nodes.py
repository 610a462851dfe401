"""Build the parts that test and cordon nodes: launchers, cordoners and the actor."""

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from logdoctor.errors import InputError, LaunchError, SettingsError
from logdoctor.extras import missing
from logdoctor.nodes.board import NodeTestTerms
from logdoctor.nodes.cordon.caps import Caps
from logdoctor.nodes.cordon.cordoner import Cordoner
from logdoctor.nodes.cordon.cordoning import Cordoning
from logdoctor.nodes.cordon.dry_run import DryRun
from logdoctor.nodes.cordon.file import FileCordoner
from logdoctor.nodes.cordon.slurm import SlurmCordoner
from logdoctor.nodes.launch.local import LocalLauncher
from logdoctor.nodes.launch.slurm import SlurmLauncher
from logdoctor.nodes.launching import Launcher, ProbeOptions
from logdoctor.nodes.policy import Modes
from logdoctor.nodes.slurm import expanded
from logdoctor.nodes.topology import groups
from logdoctor.service.acting import Actor, Means
from logdoctor.service.leading import alone
from logdoctor.service.testing import Bench
from logdoctor.settings import PREFIX, Settings, environment
from logdoctor.store.jobs.records import Records
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.types.launchers import LauncherName
from logdoctor.types.nodes import Node, checked_name
from logdoctor.wiring.stored import made_folder, records

if TYPE_CHECKING:
    from logdoctor.nodes.kubernetes_api import Cluster


def actor(
    settings: Settings, kept: Records | None = None, taking_up: bool = False, leads: Callable[[], bool] = alone
) -> Actor:
    """Return the actor that tests and cordons nodes, not yet started.

    It uses the records of the data folder. `taking_up` is for the service: it continues interrupted tests, and acts on
    verdicts while it `leads`.
    """
    kept = kept or records(settings)
    nodes = NodeRecords(kept.database)
    cordons = cordoner(settings, nodes)
    caps = Caps(settings.cordon_share, settings.cordon_at_once, settings.cordon_per_hour)
    cordoning = Cordoning(nodes, cordons, settings.cordon_owner, caps)
    modes = (settings.act_test, settings.act_cordon, settings.act_reboot, settings.act_inspect, settings.act_restart)
    means = Means(
        bench(settings),
        settings.launcher,
        cordoning,
        cordons.nodes,
        expanded,
        Modes(*modes),
        settings.test_repeats_after_steps,
    )
    return Actor(means, kept, nodes, made_folder(settings), taking_up, leads)


def bench(settings: Settings) -> Bench:
    """Return the bench: the launcher, parameters and limits of node tests."""
    floors = tuple((name, _number("TEST_FLOORS", value)) for name, value in _pairs("TEST_FLOORS", settings.test_floors))
    terms = NodeTestTerms(
        repeats=settings.test_repeats,
        regroups=settings.test_regroup,
        slow_share=settings.test_slow_share,
        slow_share_cpu=settings.test_slow_share_cpu,
        floors=floors,
    )
    probe = ProbeOptions(
        settings.test_seconds,
        tuple(int(_number("TEST_SIZES", size)) for size in settings.test_sizes.split(",") if size.strip()),
        settings.test_gpus,
        tuple(f"{name}={value}" for name, value in _pairs("TEST_ENV", settings.test_env)),
        settings.test_python,
    )
    _slurm_options(settings)  # report bad options at start-up, not at the first test
    grouped = partial(_grouped, settings.test_topology)
    return Bench(partial(launcher, settings), grouped, terms, probe, settings.test_minutes, settings.test_port)


def launcher(settings: Settings, name: str) -> Launcher:
    """Return the launcher of this name. `LaunchError` for an unknown one, or without its settings or library."""
    try:
        return _launcher(settings, name)
    except ModuleNotFoundError as error:
        if extra := missing(error):
            raise LaunchError(extra.thing, extra.cause, extra.next_step) from error
        raise


def _launcher(settings: Settings, name: str) -> Launcher:
    if name == "local":
        return LocalLauncher(settings.local_nodes)
    if name == "slurm":
        inherited = environment()
        return SlurmLauncher(inherited, inherited.get("SLURM_JOB_ID", ""), _slurm_options(settings))
    if name == "ssh":
        from logdoctor.nodes.launch.ssh import SshLauncher

        hosts, known = _hosts(settings.ssh_hosts)
        return SshLauncher(
            hosts,
            nodes=known,
            user=settings.ssh_user or None,
            key=settings.ssh_key,
            config=settings.ssh_config,
            known_hosts=settings.ssh_known_hosts,
            python=settings.test_python,
        )
    if name == "kubernetes":
        from logdoctor.nodes.launch.kubernetes import KubernetesLauncher, PodOptions

        if not settings.kube_image:
            raise LaunchError("launcher kubernetes", "has no image", "Set LOGDOCTOR_KUBE_IMAGE.")
        resources = dict(_pairs("KUBE_RESOURCES", settings.kube_resources))
        pod = PodOptions(settings.kube_image, settings.kube_namespace, resources, **_pod_options(settings.kube_pod))
        return KubernetesLauncher(_cluster(settings), pod, settings.cordon_owner, settings.kube_selector)
    raise LaunchError(f"launcher {name[:40]!r}", "does not exist", f"Use one of {', '.join(get_args(LauncherName))}.")


def cordoner(settings: Settings, nodes: NodeRecords) -> Cordoner:
    """Return the cordoner of the settings."""

    def fleet() -> list[str]:
        return expanded(settings.fleet) if settings.fleet else nodes.tested()

    if settings.cordon_with == "file":
        if settings.cordon_file is None:
            raise SettingsError(
                f"{PREFIX}CORDON_FILE", "is not set, but LOGDOCTOR_CORDON_WITH=file needs it", "Set it."
            )
        return FileCordoner(settings.cordon_file, fleet)
    cluster = settings.launcher if settings.cordon_with == "dry-run" else settings.cordon_with
    real: Cordoner | None = None
    if cluster == "slurm":
        real = SlurmCordoner(environment())
    elif cluster == "kubernetes":
        from logdoctor.nodes.cordon.kubernetes import KubernetesCordoner

        real = KubernetesCordoner(_cluster(settings))
    return DryRun(real, fleet) if real is None or settings.cordon_with == "dry-run" else real


def _cluster(settings: Settings) -> "Cluster":
    from logdoctor.nodes.kubernetes_api import Cluster

    return Cluster(str(settings.kube_config or ""), settings.kube_context)


def _grouped(topology: Path | None, nodes: Sequence[Node], other: str) -> list[Node]:
    """Return the nodes with their switches from a topology file. `InputError` when it cannot be read."""
    path = Path(other) if other else topology
    if path is None:
        return list(nodes)
    try:
        known = groups(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"is not a readable topology ({error})", "Name Slurm's topology.conf.") from error
    return [msgspec.structs.replace(node, group=known.get(node.name, node.group)) for node in nodes]


def _hosts(path: Path | None) -> tuple[list[str], list[Node]]:
    """Return the SSH hosts of nodes, and their addresses for peers. Lines are `NAME [USER@]HOST[:PORT] [ADDRESS]
    [GROUP]`; `InputError` for a file that cannot be read."""
    hosts, nodes = [], []
    if path is not None:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(str(path), f"is not a hosts file ({error})", "See LOGDOCTOR_SSH_HOSTS.") from error
        for words in (line.partition("#")[0].split() for line in lines):
            if not words:
                continue
            name, host, address, group = (*words, *[""] * 4)[:4]
            hosts.append(f"{checked_name(name)}={host or name}")
            nodes.append(Node(name, address, group))
    return hosts, nodes


_POD_TEXTS = ("shared_memory", "service_account", "runtime_class", "priority_class")
_POD_LISTS = {"capability": "capabilities", "pull_secret": "pull_secrets"}


def _pod_options(text: str) -> dict[str, Any]:
    """Parse the options for probe pods; `SettingsError` for unknown ones."""
    options: dict[str, Any] = {}
    for key, value in _pairs("KUBE_POD", text):
        if key in _POD_LISTS:
            options[_POD_LISTS[key]] = (*options.get(_POD_LISTS[key], ()), value)
        elif key == "privileged" and value in ("true", "false"):
            options[key] = value == "true"
        elif key in _POD_TEXTS:
            options[key] = value
        else:
            known = ", ".join((*_POD_TEXTS, *_POD_LISTS, "privileged=true"))
            raise SettingsError(f"{PREFIX}KUBE_POD", f"{key[:40]}={value[:40]} is not a pod option", f"Use {known}.")
    return options


def _slurm_options(settings: Settings) -> tuple[str, ...]:
    """Return the options for `srun`; `SettingsError` when they cannot be split."""
    try:
        return tuple(shlex.split(settings.slurm_options))
    except ValueError as error:
        cause = f"{settings.slurm_options[:80]!r} cannot be split into words ({error})"
        raise SettingsError(f"{PREFIX}SLURM_OPTIONS", cause, "Quote it as in a shell.") from error


def _pairs(name: str, text: str) -> list[tuple[str, str]]:
    """Return the pairs of `K=V,K=V`; `SettingsError` for anything else."""
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    if any(not key or not sign for key, sign, _ in pairs):
        raise SettingsError(f"{PREFIX}{name}", f"{text[:80]!r} is not in the form K=V,K=V", "See docs/settings.md.")
    return [(key, value) for key, _, value in pairs]


def _number(name: str, text: str) -> float:
    """Return a number above zero; `SettingsError` for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e15:
        raise SettingsError(f"{PREFIX}{name}", f"{text[:40]!r} is not a valid number", "See docs/settings.md.")
    return value
