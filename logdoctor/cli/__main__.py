"""`python -m logdoctor.cli`."""

from logdoctor.cli import main

main()
