"""`logdoctor tokens`: manage who may use the service."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from logdoctor.cli.options import beside_data, data_dir_option, settings_with

if TYPE_CHECKING:
    from logdoctor.store.keeping.tokens import Tokens


@click.group()
def tokens() -> None:
    """Create, list and revoke tokens."""


def _tokens(data_dir: Path | None) -> "Tokens":
    from logdoctor.store.keeping.tokens import Tokens
    from logdoctor.wiring import stored

    return Tokens(stored.records(settings_with(data_dir)).database)


@tokens.command("create")
@click.argument("name")
@click.option(
    "--scope", "scopes", multiple=True, required=True, help="ingest, place, read, operate or admin; repeatable."
)
@click.option("--prefix", "prefixes", multiple=True, help="Limit to jobs whose names start with this; repeatable.")
@click.option("--days", type=click.FloatRange(min=0, min_open=True), help="Days until it expires.")
@data_dir_option
@beside_data
def tokens_create(
    name: str, scopes: tuple[str, ...], prefixes: tuple[str, ...], days: float | None, data_dir: Path | None
) -> None:
    """Create a token and print its secret, which is shown only once."""
    expires = time.time() + days * 86_400 if days else None
    _, secret = _tokens(data_dir).create(name, scopes, prefixes, expires)
    click.echo(secret)


@tokens.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per token and line.")
@data_dir_option
@beside_data
def tokens_list(as_json: bool, data_dir: Path | None) -> None:
    """List all tokens, without their secrets."""
    from logdoctor.words import show

    show.tokens(_tokens(data_dir).list(), as_json)


@tokens.command("revoke")
@click.argument("name")
@data_dir_option
@beside_data
def tokens_revoke(name: str, data_dir: Path | None) -> None:
    """Revoke a token; it stops working within seconds."""
    _tokens(data_dir).revoke(name)
    click.echo(f"revoked {name}")
