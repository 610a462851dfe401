"""Watch a folder of checkpoints in a terminal: the progress of running saves."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.live import Live
from rich.text import Text

from logdoctor.job.recovery.catalogue.progress import Progress, Watch
from logdoctor.words.checkpoint_tables import size_words
from logdoctor.words.show import ascii_json, safe

_EVERY = 0.5  # seconds
_NAME = 300  # characters


def watch(folder: Path, as_json: bool) -> NoReturn:
    """Print the progress of saves until Ctrl-C. A terminal shows lines that are refreshed; otherwise each change of a
    stage is a line. As JSON, each change is an object, also one of bytes."""
    if as_json:
        for one in _changes(folder, of_bytes=True):
            print(ascii_json({"at": round(time.time(), 3), **one._asdict()}), flush=True)
    console = Console(highlight=False)
    if not console.is_terminal:
        for one in _changes(folder, of_bytes=False):
            console.print(_line(one), soft_wrap=True)
            sys.stdout.flush()
    _live(folder, console)


def _live(folder: Path, console: Console) -> NoReturn:
    """Refresh a line for each running save, and leave one for each that ended."""
    looking = Watch(folder)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            found = looking.look(time.monotonic())
            for one in found:
                if one.stage in ("complete", "gone"):
                    console.print(_line(one))
            going_on = [_line(one) for one in found if one.stage not in ("complete", "gone")]
            live.update(Text("\n").join(going_on) if going_on else Text("no save under way", style="dim"), refresh=True)
            time.sleep(_EVERY)


def _changes(folder: Path, of_bytes: bool) -> Iterator[Progress]:
    """Yield each save when its stage changes, or (`of_bytes`) its bytes do."""
    looking, said = Watch(folder), dict[str, tuple[object, ...]]()
    while True:
        for one in looking.look(time.monotonic()):
            now = (one.stage, one.bytes if of_bytes else None)
            if said.get(one.name) != now:
                said[one.name] = now
                yield one
        time.sleep(_EVERY)


def _line(one: Progress) -> Text:
    """Return the progress of one save as a line."""
    done = size_words(one.bytes)
    if one.expected and one.stage not in ("complete", "gone"):
        done += f" of about {size_words(one.expected)} ({min(100 * one.bytes // one.expected, 100)} %)"
    words = f"{safe(one.name, _NAME)}  {one.stage}  {done}  {one.per_second / 1e6:.0f} MB/s  {one.seconds:.0f} s"
    return Text(words, style={"gone": "red", "standing still": "yellow", "complete": "green"}.get(one.stage, ""))
