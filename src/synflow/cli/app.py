"""The application: commands, exit codes, and errors in one sentence.

Exit codes: 0 done, 1 the answer is no (not connected, target not reached, self-test failed), 2 wrong input,
70 a bug in synflow, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any

import typer

from .._version import __version__
from ..errors import SynflowError
from .demo_command import demo
from .doctor_command import doctor
from .inspect_commands import certify, compare, inspect
from .list_commands import data, models, schedules, scopes, scores
from .paper_command import paper
from .prune_command import prune
from .results_command import results
from .ship_commands import bench, compact, export
from .sweep_command import sweep

EPILOG = "Exit codes: 0 done, 1 the answer is no, 2 wrong input, 70 a bug, 130 stopped. --debug shows tracebacks."

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="synflow",
    help="Prune neural networks before training, without data, with a proof that a path from input to output stays.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings=HELP_OPTIONS,
)

PANELS = {
    "Prune": (prune, inspect, certify, compare),
    "Ship": (compact, bench, export),
    "Learn": (demo, models, scores, schedules, scopes, data, doctor),
    "Experiments": (paper, sweep, results),
}
for panel, functions in PANELS.items():
    for function in functions:
        app.command(rich_help_panel=panel, context_settings=HELP_OPTIONS)(function)


def _version(value: bool) -> None:
    if value:
        print(f"synflow {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Prune neural networks before training, without data, with a proof that a path from input to output stays."""


def _command() -> Any:
    """The application for click, whose --help omits type names such as <bool> and line breaks of the source."""
    command: Any = typer.main.get_command(app)
    for one in (command, *command.commands.values()):
        one.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in (one.help or "").split("\n\n"))
        with one.make_context("synflow", [], resilient_parsing=True) as context:
            for parameter in one.get_params(context):
                if getattr(parameter, "is_flag", False):
                    parameter.metavar = ""
                elif parameter.param_type_name == "argument":
                    parameter.display_type_rich = lambda **_: None  # its name shows the type
    return command


def run(argv: list[str]) -> int:
    """Run a command line; the result is its exit code."""
    debug = "--debug" in argv
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_warn, warnings.showwarning)
            _command()([word for word in argv if word != "--debug"], prog_name="synflow")
    except SystemExit as leave:
        # typer turns an interrupt and a closed pipe into exit codes; the original error is in the chain of causes.
        stop = next((cause for cause in _causes(leave) if isinstance(cause, KeyboardInterrupt)), None)
        if stop is not None:
            said = f"stopped{stop}" if str(stop)[:1] in ("", " ", ";") else f"stopped: {stop}"
            return _fail(f"\r\033[K{said}" if sys.stderr.isatty() else said, 130)
        if any(isinstance(cause, BrokenPipeError) for cause in _causes(leave)):
            # The reader of a pipe has stopped reading; Python must not report that as an error at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return leave.code if isinstance(leave.code, int) else 0 if leave.code is None else 2
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, SynflowError | OSError):
            return _fail(f"error: {error}", 2)
        what = " ".join(str(error).split())
        return _fail(f"error: this is a bug in synflow: {type(error).__name__}: {what}; --debug shows where", 70)
    return 0


def _warn(usual: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any) -> None:
    """Warnings for users in one line without a place in the code; others, which are for programmers, as usual."""
    if category is UserWarning:
        print(f"warning: {message}", file=sys.stderr)
    else:
        usual(message, category, *where)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _fail(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code
