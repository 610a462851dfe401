"""What a terminal is told in the bytes of a line, and readers of the line do not see."""

ANSI = rb"\x1b\[[0-9;?]*[ -/]*[@-~]"
"""The pattern of an ANSI escape sequence. It never has a newline, so removing it keeps line numbers."""
