"""What the audience sees: headings, commands with their output, and a stream's progress.

Rich on a terminal, plain lines elsewhere. Knows nothing of what is shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from demo.site import Ran


class Voice:
    def __init__(self) -> None:
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = 160  # nobody's window: lines stay whole
        self._started = time.monotonic()
        self._act = 0

    def heading(self, title: str) -> None:
        self._act += 1
        self.console.print()
        self.console.rule(f"[bold]{self._act}. {title}", align="left", style="cyan")

    def say(self, text: str) -> None:
        self.console.print(text)

    def note(self, text: str) -> None:
        self.console.print(f"[dim]{text}[/dim]")

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """A step that takes a moment: shown while it lasts, and how long it took."""
        began = time.monotonic()
        if self.console.is_terminal:
            with self.console.status(f"{what} …"):
                yield
        else:
            yield
        took_ms = (time.monotonic() - began) * 1000
        self.console.print(f"[green]✓[/green] {what} [dim]({took_ms:.0f} ms)[/dim]")

    def token(self, text: str) -> None:
        """A piece of an answer, the moment it comes."""
        self.console.print(Text(text, style="bright_white"), end="", soft_wrap=True)
        self.console.file.flush()

    def command(self, ran: Ran) -> None:
        """A command with everything it said and how it ended."""
        self.console.print(f"[bold yellow]$[/bold yellow] [bold]{ran.line}[/bold]")
        for line in (ran.stdout + ran.stderr).rstrip().splitlines():
            self.console.print(Text(f"  {line}"))
        self.console.print(f"  [dim]exit status {ran.exit_status}[/dim]")

    def edit(self, removed: list[str], added: list[str]) -> None:
        """Lines of a file as they were and as they are now."""
        for line in removed:
            self.console.print(Text(f"  - {line.strip()}", style="red"))
        for line in added:
            self.console.print(Text(f"  + {line.strip()}", style="green"))

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Bar]:
        """A bar that stays at the bottom while other things are printed above it."""
        columns = (
            TextColumn("[magenta]{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} tokens"),
        )
        with Progress(*columns, console=self.console, disable=not self.console.is_terminal) as bars:
            yield Bar(bars, bars.add_task(what, total=total))

    def summary(self, shown: list[tuple[str, str]]) -> None:
        table = Table(show_header=False, box=None, padding=(0, 1))
        for claim, evidence in shown:
            table.add_row("[green]✓[/green]", claim, f"[dim]{evidence}[/dim]")
        self.console.print()
        self.console.rule("[bold]What you saw", align="left", style="cyan")
        self.console.print(table)
        self.note(f"in {time.monotonic() - self._started:.0f} s")


class Bar:
    """Moves with the tokens that have come."""

    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars = bars
        self._task = task

    def moved_to(self, count: int) -> None:
        self._bars.update(self._task, completed=count)
