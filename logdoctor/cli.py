"""The command line."""

import sys

import click

from logdoctor import build
from logdoctor.errors import LogdoctorError
from logdoctor.settings import read_settings


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="logdoctor")
def cli() -> None:
    """Finds the cause of a failed LLM training job in its log."""


@cli.group()
def rules() -> None:
    """Look at the rules and check them."""


@rules.command("check")
def rules_check() -> None:
    """Verify every rule with the examples it carries."""
    from logdoctor.rules.check import check

    scanner = build.scanner(read_settings())
    problems = check(scanner.book, scanner)
    for problem in problems:
        click.echo(str(problem))
    book = scanner.book
    click.echo(f"{len(book.filters)} filter rules, {len(book.diagnoses)} diagnosis rules, {len(problems)} problems")
    sys.exit(2 if problems else 0)


@rules.command("why")
@click.argument("line")
def rules_why(line: str) -> None:
    """Show which rules hit LINE."""
    from logdoctor.rules.check import hits

    from logdoctor.rules.captures import captures

    scanner = build.scanner(read_settings())
    owner, evidence = hits(scanner, line)
    click.echo(f"filter: {scanner.book.filters[owner].id if owner >= 0 else '-'}")
    for number in evidence:
        rule = scanner.book.diagnoses[number]
        click.echo(f"{rule.id}: {rule.verdict} {captures(rule, line)}")


def main() -> None:
    """Run the command line; errors raised on purpose are printed and exit with code 2."""
    try:
        cli(standalone_mode=True)
    except LogdoctorError as error:
        click.echo(f"logdoctor: {error}", err=True)
        sys.exit(2)
