"""Terminal escape sequences, which readers of a line do not see."""

ANSI = rb"\x1b\[[0-9;?]*[ -/]*[@-~]"
"""An ANSI escape sequence. It never has a newline, so removing it keeps line numbers."""
