"""The Dockerfile is built by buildah, on a small Debian in place of the base image, with libraries from a folder; no
registry is asked. `make soak` prepares both in build/image."""

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.files import DEPLOY, ROOT, tool
from tests.ports import free_port

PREPARED = ROOT / "build" / "image"
TAG = "localhost/logdoctor:test"


class Builder:
    """buildah with a store of its own."""

    def __init__(self, folder: Path) -> None:
        self._options = ("--storage-driver", "vfs", "--root", folder / "store", "--runroot", folder / "run")

    def run(self, command: str, *words: object) -> str:
        """What a command of buildah prints."""
        done = subprocess.run(
            [tool("buildah"), *map(str, self._options), command, *map(str, words)],
            capture_output=True,
            text=True,
            timeout=1800,
            env=os.environ | {"BUILDAH_ISOLATION": "chroot"},
        )
        assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done.stdout.strip()


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """buildah, with the image built."""
    assert (PREPARED / ".ready").exists(), "build/image is missing: run `make soak`"
    folder = tmp_path_factory.mktemp("image")
    builder = Builder(folder)
    base = builder.run("from", "scratch")
    builder.run("add", base, PREPARED / "rootfs", "/")
    builder.run("commit", "--rm", base, "localhost/base")
    (folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    mounts = (f"{PREPARED}/wheels:/wheels:ro", f"{folder}/pip.conf:/etc/pip.conf:ro")
    volumes = [word for mount in mounts for word in ("--volume", mount)]
    file = ("--file", DEPLOY / "Dockerfile", "--build-arg", "BASE=localhost/base")
    builder.run("bud", "--format", "docker", "--pull-never", *volumes, *file, "--tag", TAG, ROOT)
    yield builder
    builder.run("rmi", "--all", "--force")


def test_the_image_is_what_was_asked_for(builder: Builder) -> None:
    found: dict[str, Any] = json.loads(builder.run("inspect", "--type", "image", TAG))["Docker"]["config"]
    assert found["User"] == "10001:10001" and found["Entrypoint"] == ["logdoctor"] and found["Cmd"] == ["serve"]
    assert "8080/tcp" in found["ExposedPorts"] and found["Healthcheck"]["Test"][:2] == ["CMD", "python3"]
    assert found["StopSignal"] == "SIGTERM"


def test_what_is_in_it_works_and_writes_nothing_outside_of_its_folder(builder: Builder) -> None:
    container = builder.run("from", "--pull-never", TAG)
    mounted = Path(builder.run("mount", container))
    assert not list(mounted.glob("opt/logdoctor/bin/pip*")), "who breaks in finds no installer"
    assert not list(mounted.glob("source")) and not list(mounted.glob("build"))
    assert (mounted / "var/lib/logdoctor").stat().st_uid == 10001
    before = files_of(mounted)
    script = "id -u; echo CUDA out of memory > /tmp/a.log; logdoctor diagnose /tmp/a.log >/tmp/said; test -s /tmp/said"
    script += "; logdoctor-first-token /var/lib/logdoctor/token; cat /var/lib/logdoctor/token; logdoctor doctor || true"
    said = builder.run("run", container, "--", "sh", "-c", script)
    assert said.startswith("10001\n") and "\nldr_" in said
    assert "filter rules" in said
    assert "/opt/logdoctor/cache" not in said
    written = {path for path in files_of(mounted) - before if not path.startswith(("tmp/", "var/lib/logdoctor/"))}
    assert written == set(), "the root may be read-only"
    builder.run("rm", container)


def test_it_serves_and_its_own_check_says_so(builder: Builder) -> None:
    found = json.loads(builder.run("inspect", "--type", "image", TAG))["Docker"]["config"]
    check = shlex.join(found["Healthcheck"]["Test"][1:])
    script = f"""
        export LOGDOCTOR_PORT={free_port()}
        {check} 2>/dev/null && echo too early
        logdoctor-first-token /var/lib/logdoctor/token
        logdoctor serve & served=$!
        for second in $(seq 300); do {check} 2>/dev/null && break; sleep 1; done
        {check} && echo healthy
        kill $served; wait $served; echo stopped with $?
    """
    container = builder.run("from", "--pull-never", TAG)
    said = builder.run("run", container, "--", "sh", "-c", script)
    assert "healthy" in said and "stopped with 0" in said and "too early" not in said
    builder.run("rm", container)


def files_of(root: Path) -> set[str]:
    """The files of a container, by their paths in it."""
    return {str(Path(folder, name).relative_to(root)) for folder, _, names in os.walk(root) for name in names}
