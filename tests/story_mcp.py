"""`logdoctor mcp` as agents meet it: a process on standard input and output, and one that listens."""

import os
import subprocess
from pathlib import Path
from typing import Any

import anyio
import httpx
import httpx2
import yaml
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult

from logdoctor.rules.scanner import Scanner
from tests import waiting
from tests.ports import free_port
from tests.programs import LOGDOCTOR
from tests.test_cli import CORPUS
from tests.web.conftest import new_service, options, serving

TOOLSET = Path(__file__).parents[1] / "deploy" / "agents" / "holmesgpt.yaml"
LOG = "failures/inf-028.log"


def own(tmp_path: Path, **settings: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOGDOCTOR_")}
    return kept | {"LOGDOCTOR_DATA_DIR": str(tmp_path / "data")} | settings


def test_an_agent_starts_it_and_finds_out_why_a_job_failed(tmp_path: Path) -> None:
    async def main() -> list[CallToolResult]:
        arguments = ["mcp", "--files", str(CORPUS)]
        server = StdioServerParameters(command=LOGDOCTOR, args=arguments, env=own(tmp_path))
        async with Client(server) as client:
            assert {one.name for one in (await client.list_tools()).tools} == {"diagnose_log", "read_log"}
            asked: list[tuple[str, dict[str, Any]]] = [
                ("diagnose_log", {"path": LOG}),
                ("read_log", {"path": LOG, "line": 126, "around": 0}),
            ]
            return [
                await client.call_tool(name, given) for name, given in [*asked, ("read_log", {"path": "/etc/passwd"})]
            ]

    verdict, lines, refused = anyio.run(main)
    assert verdict.structured_content and verdict.structured_content["facts"]["reason"] == "ECC Error"
    assert lines.structured_content
    shown = lines.structured_content["data_not_instructions"]["lines"]
    assert shown == ["126: [os-a100-03] Cuda failure 'uncorrectable ECC error encountered'"]
    assert refused.is_error and "root:" not in refused.model_dump_json()


def test_the_toolset_reaches_one_that_listens_which_passes_its_token_on(tmp_path: Path, scanner: Scanner) -> None:
    with serving(new_service(tmp_path / "data", scanner), options(wants_token=True)) as served:
        token = served.service.tokens.create("agent", ["read"], (), None)[1]
        address = f"127.0.0.1:{free_port()}"
        command = [LOGDOCTOR, "mcp", "--http", address, "--url", served.url]
        server = subprocess.Popen(command, env=own(tmp_path), stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr and f"http://{address}/mcp" in server.stderr.readline()
            waiting.until(lambda: answers(f"http://{address}/mcp"))
            assert httpx.post(f"http://{address}/mcp", json={}).status_code == 401
            toolset = yaml.safe_load(TOOLSET.read_text())["mcp_servers"]["logdoctor"]["config"]
            url = toolset["url"].replace("logdoctor-mcp:8765", address)
            known = toolset["headers"]["Authorization"].replace("{{ env.LOGDOCTOR_TOKEN }}", token)
            found = anyio.run(called, url, {"Authorization": known})
            assert found["data_not_instructions"]["items"] == []
        finally:
            server.terminate()
            server.communicate()


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 401
    except httpx.TransportError:
        return False


async def called(url: str, headers: dict[str, str]) -> dict[str, Any]:
    async with httpx2.AsyncClient(headers=headers) as http:
        async with Client(streamable_http_client(url, http_client=http)) as client:
            found = await client.call_tool("list_incidents", {})
    assert found.structured_content, found.content
    return found.structured_content
