"""`logdoctor mcp`: the tools of logdoctor for other agents, over the Model Context Protocol."""

from pathlib import Path

import click

from logdoctor.cli.options import chosen_place, log_to_stderr
from logdoctor.settings import read_settings


@click.command()
@click.option("--http", metavar="HOST:PORT", help="Serve over HTTP, at /mcp; default: standard input and output.")
@click.option("--url", help="URL of a running service to ask; default: LOGDOCTOR_URL, else only files are read.")
@click.option(
    "--files",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder below which logs may be read; default: the working folder, with --http none.",
)
def mcp(http: str | None, url: str | None, files: tuple[Path, ...]) -> None:
    """Offer these tools to other agents.

    It speaks the Model Context Protocol: an agent starts it, or reaches it with --http. With a service an agent sees
    and does what its token allows: LOGDOCTOR_TOKEN or, with --http, the bearer token that it sends.
    """
    host, _, port = (http or "-:1").rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65536):
        raise click.UsageError("--http takes HOST:PORT, such as 127.0.0.1:8765.")
    settings, service = read_settings(), chosen_place(url, None).service
    if http and service is None:
        raise click.UsageError("--http needs a service, which knows the tokens: give --url, or set LOGDOCTOR_URL.")
    from logdoctor.cli.mcp.server import Tools, mcp_server

    log_to_stderr()
    folders = files or (() if http else (Path.cwd(),))
    server = mcp_server(Tools(settings, folders, service, by_bearer=http is not None))
    if http is None:
        server.run("stdio")
        return
    click.echo(f"logdoctor: agents reach these tools at http://{http}/mcp", err=True)
    server.run("streamable-http", host=host.strip("[]"), port=int(port), stateless_http=True, json_response=True)
