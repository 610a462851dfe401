"""The Dockerfile: what a linter says, and that what it copies and installs is there. `make soak` builds it."""

import re
import tomllib
from pathlib import Path

from tests.deploy.files import DEPLOY, ROOT, image_environment, ran, tool

DOCKERFILE = DEPLOY / "Dockerfile"
TEXT = DOCKERFILE.read_text()


def test_a_linter_finds_nothing() -> None:
    done = ran(tool("hadolint"), "--failure-threshold", "style", "--trusted-registry", "docker.io", DOCKERFILE)
    assert done.returncode == 0, done.stdout


def test_the_linter_would_find_something(tmp_path: Path) -> None:
    broken = tmp_path / "Dockerfile"
    broken.write_text(TEXT.replace("ENTRYPOINT [", "ENTRYPOINT sh -c ["))
    assert ran(tool("hadolint"), broken).returncode != 0


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert "*" in ignored
    copied = [line.split()[1:-1] for line in TEXT.splitlines() if re.match(r"COPY (?!--from)", line)]
    names = [word.replace("${LOCK}", "requirements.lock") for words in copied for word in words]
    for name in names:
        if name.startswith("--"):
            continue
        assert (ROOT / name).exists(), name
        assert any(Path(name).match(pattern) for pattern in kept), f"{name} is kept out by .dockerignore"
    assert {"logdoctor", "rules", "prompts", "pyproject.toml", "README.md", "LICENSE"} <= set(names)


def test_it_runs_as_nobody_who_may_do_much() -> None:
    last = TEXT[TEXT.rindex("\nFROM ") :]
    assert "\nUSER 10001:10001\n" in last and "--shell /usr/sbin/nologin" in last
    assert image_environment()["LOGDOCTOR_HOST"] == "0.0.0.0"
    assert (
        f"LOGDOCTOR_CACHE_DIR={image_environment()['LOGDOCTOR_CACHE_DIR']} /opt/logdoctor/bin/logdoctor rules check"
        in TEXT
    )


def test_locks_have_hashes_and_the_versions_that_are_tested() -> None:
    tested = _versions(ROOT / "requirements.lock")
    for name, extras in (
        ("requirements.lock", ["service", "cluster", "tracing"]),
        ("requirements-all.lock", ["agents", "nodes"]),
    ):
        lock = DEPLOY / name
        assert _versions(lock).items() <= tested.items(), name
        assert lock.read_text().count("--hash=sha256:") >= len(_versions(lock))
        wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        libraries = {re.split(r"[>=\[]", one)[0] for extra in extras for one in wanted[extra]} - {"logdoctor", "torch"}
        assert libraries <= _versions(lock).keys()
    assert _versions(DEPLOY / "requirements-build.lock").items() <= tested.items()


def _versions(lock: Path) -> dict[str, str]:
    found = re.findall(r"^([a-zA-Z0-9._-]+)(?:\[[a-z,]+\])?==(\S+)", lock.read_text(), re.M)
    assert found, lock
    return dict(found)
