"""Ctrl-C at any moment: one line that says how far the command came, exit code 130, never a traceback."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import synflow
from synflow.cli import main

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(synflow.__file__).parents[1])}
pytestmark = pytest.mark.integration


def stopped(command, tmp_path, ready):
    """Start a command, stop it when `ready` says so, and return what it wrote to standard error."""
    process = subprocess.Popen(
        [sys.executable, *command], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=ENVIRONMENT,
    )  # fmt: skip
    ready(process)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    return errors


# A module that takes its time to be imported, and turns every error of that into one of its own, as numpy does.
SLOW_IMPORT = """
import sys, types, importlib.abc, importlib.util, time
class Slow(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name == NAME else None
    def create_module(self, spec): return None
    def exec_module(self, module):
        print("importing", flush=True)
        try:
            time.sleep(30)
        except BaseException:
            raise AttributeError("module 'numpy' has no attribute 'matrix'") from None
NAME = sys.argv.pop(1)
sys.meta_path.insert(0, Slow())
from synflow.cli import main
main()
"""


@pytest.mark.parametrize("module", ["typer", "torch"])
def test_while_modules_are_imported(tmp_path, module):
    (tmp_path / "start.py").write_text(textwrap.dedent(SLOW_IMPORT))
    errors = stopped(
        ["start.py", module, "prune", "fc", "--compression", "10"], tmp_path, lambda process: process.stdout.readline()
    )
    assert errors == "stopped\n"


# Read by Python as it starts: a Ctrl-C at the moment at which the named module is asked for.
AT_IMPORT = """
import importlib.abc, os, signal, sys
class Stop(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == os.environ.get("STOP_AT"):
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Stop())
print("python is up", flush=True)
"""
SCRIPT = "import sys\nfrom synflow.cli import main\nsys.exit(main())\n"  # what an installer writes to bin/synflow


@pytest.fixture
def watched(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT)
    (tmp_path / "synflow").write_text(SCRIPT)
    return {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(tmp_path), ENVIRONMENT["PYTHONPATH"]])}


@pytest.mark.parametrize("start", [["-m", "synflow"], ["synflow"]])
@pytest.mark.parametrize("module", ["synflow._version", "synflow.errors", "synflow.cli", "typer", "rich", "numpy"])
def test_while_the_command_starts(tmp_path, watched, start, module):
    done = subprocess.run(
        [sys.executable, *start, "models"], cwd=tmp_path, env={**watched, "STOP_AT": module}, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "stopped\n")


COMMANDS = """models|doctor|scores|prune fc --compression 10 --steps 5000|inspect run|certify run|compact run|\
bench run|export run|compare run run|demo|sweep --set model=fc --grid seed=0..900|results|paper --list|prune --help"""


@pytest.mark.parametrize("command", COMMANDS.split("|"))
def test_in_the_first_seconds_of_every_command(tmp_path, watched, command):
    """A command that was quicker than the interrupt has done its work: an answer or one sentence, never a traceback."""
    for delay in (0.1, 0.3, 1.0):
        process = subprocess.Popen(
            [sys.executable, "-m", "synflow", *command.split()], cwd=tmp_path, env=watched, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=120)[1]
        assert process.returncode in (130, -signal.SIGINT, 0, 2), errors
        assert "Traceback" not in errors
        assert "bug" not in errors
        if process.returncode == 130:
            assert errors.splitlines()[-1].startswith("stopped")


def test_the_library_leaves_the_handler_alone(tmp_path):
    program = "import signal, synflow; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    for line in (["-c", program], ["own.py"]):
        (tmp_path / "own.py").write_text(program)
        done = subprocess.run([sys.executable, *line], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
        assert done.stdout == "True\n"


def test_an_interrupt_that_meets_a_destructor_is_not_lost(tmp_path):
    (tmp_path / "net.py").write_text(
        textwrap.dedent(
            """
            import signal, time
            class Fragile:
                def __del__(self):
                    print("waiting", flush=True)
                    time.sleep(5)
            def make():
                Fragile()
                time.sleep(20)
            """
        )
    )
    command = "-m synflow prune net.py:make --compression 10"
    assert stopped(command.split(), tmp_path, lambda process: process.stdout.readline()).startswith("stopped")


def test_a_sweep_tells_how_far_it_came(tmp_path):
    command = (
        "-m synflow sweep --set model=fc --set width=0.2 --set train_per_class=15 --set epochs=1 --grid seed=0..900"
    )
    errors = stopped(command.split(), tmp_path, lambda process: [process.stdout.readline() for _ in range(3)])
    assert re.fullmatch(
        r"stopped after \d+ of 901 runs; finished runs are kept in runs: start again to go on\n", errors
    ), errors


def test_bench_tells_how_far_it_came(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        textwrap.dedent(
            """
            from pathlib import Path
            from torch import nn
            class Net(nn.Linear):
                calls = 0
                def forward(self, x):
                    Net.calls += 1
                    if Net.calls == 3000:
                        Path("started").touch()
                    return super().forward(x)
            def make():
                return nn.Sequential(Net(12, 40), nn.ReLU(), nn.Linear(40, 5))
            """
        )
    )
    with pytest.raises(SystemExit):
        main("prune net.py:make --compression 4 --steps 2 --out run".split())

    def ready(process):
        while not (tmp_path / "started").exists() and process.poll() is None:
            time.sleep(0.1)

    errors = stopped("-m synflow bench run --model net.py:make --repeats 100000".split(), tmp_path, ready)
    assert re.fullmatch(
        r"stopped after \d+ of 100000 rounds of training step, batch 128; nothing was written\n", errors
    ), errors


# An object that sends an interrupt when Python clears its modules: handlers of Python are no longer called then.
LATE = """
import os, signal, sys

class Late:
    def __del__(self, kill=os.kill, me=os.getpid(), sent=signal.SIGINT):
        kill(me, sent)

sys.late = Late()
"""


def test_while_python_ends_the_exit_code_is_that_of_the_command(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LATE)
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"}
    for line, code in (("--version", 0), ("prune vgg61 --compression 2", 2)):
        command = [sys.executable, "-m", "synflow", *line.split()]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert process.returncode == code, process.stderr
        assert "Traceback" not in process.stderr
