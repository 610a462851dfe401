"""`logdoctor schema` and `logdoctor completion`: describe the program itself."""

import click
import msgspec


@click.command("schema")
def schema() -> None:
    """Print the JSON Schema of a verdict."""

    from logdoctor.types import Verdict

    click.echo(msgspec.json.format(msgspec.json.encode(msgspec.json.schema(Verdict)), indent=2).decode())


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL.

    Load it with, for example: source <(logdoctor completion bash)
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(click.get_current_context().find_root().command, {}, "logdoctor", "_LOGDOCTOR_COMPLETE").source())
