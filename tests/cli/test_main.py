"""The command line: what it prints, where, and its exit codes."""

import csv
import io
import json
import math
import os
import re
import subprocess
import sys
import threading

import pytest

from hypersphere import __version__
from hypersphere._internal import progress
from hypersphere._internal.catalog import COMMANDS
from hypersphere.cli import main, parser_of, thomson


@pytest.fixture
def ready_made(monkeypatch):
    """No search: what is printed is looked at, not how it is found."""
    monkeypatch.setattr(thomson.time, "perf_counter", iter(range(100)).__next__)


# ---------------------------------------------------------------------------------------- all commands


@pytest.mark.slow
def test_no_torch_for_help_lists_configs_completion_and_errors(tmp_path):
    (tmp_path / "c.yaml").write_text("seed: 1\n")
    helps = ["--help", "train --help-all", *(f"{name} --help" for name in COMMANDS)]
    right = [*helps, "--version", "list", "list recipes --json", "train opt --print_config", "completion bash"]
    wrong = ["train --nonsense", "train optt", "train --resume opt"]
    code = "import sys; from hypersphere.cli import main\n"
    code += f"for line in {[*right, 'train --config c.yaml --print_config']!r}: assert main(line.split()) == 0, line\n"
    code += f"for line in {wrong!r}: assert main(line.split()) == 2, line\nassert 'torch' not in sys.modules"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (0, len(wrong)), done.stderr
    assert done.stdout.count("usage: hypersphere") == len(helps)


def test_help_lists_the_commands_in_groups(capsys, monkeypatch):
    monkeypatch.setitem(COMMANDS, "added", "A command in no group.")
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    width = max(map(len, COMMANDS))
    assert all(f"  {name:{width}}  {description}\n" in text for name, description in COMMANDS.items())
    headings = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert headings == ["options", "train", "look", "papers", "other"]
    assert text.index("train:") < text.index("  tune ") < text.index("look:") < text.index("  report ")
    assert text.index("other:") < text.index("  added ")


def test_files_are_written_by_out_and_pages_by_html():
    for name in COMMANDS:
        flags = {flag: action.help for action in parser_of(name)[1]._actions for flag in action.option_strings}
        written = {flag: "page" in text for flag, text in flags.items() if re.search(r"\bwrite\b|\bpage\b", text)}
        assert written.items() <= {"--out": False, "--html": True}.items(), name


def test_version_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "hypersphere", "--version"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, f"hypersphere {__version__}\n")


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["thomsen", "5"], "hypersphere: unknown command 'thomsen', did you mean 'thomson'?"),
        (["zzz"], f"hypersphere: unknown command 'zzz', must be one of {', '.join(COMMANDS)}"),
        (["--hlp"], "hypersphere: unknown flag '--hlp', did you mean '--help'?"),
        (["thomson"], "hypersphere thomson: the following arguments are required: N"),
        (["thomson", "5", "-o", "x"], "hypersphere thomson: unknown flag '-o', did you mean '--out'?"),
        (["report", "x", "--out", "y"], "hypersphere report: unknown flag '--out', did you mean '--html'?"),
        (["thomson", "5", "--json", "6"], "hypersphere thomson: unknown argument '6'"),
        (["verify", "a", "b"], "hypersphere verify: one DIR only, got a and b"),
        (["completion", "tcsh"], "hypersphere completion: SHELL must be one of bash, zsh, fish; got 'tcsh'"),
        (
            ["list", "modles"],
            "hypersphere list: unknown KIND 'modles', did you mean 'models'? (one of models, data, "
            "similarities, losses, methods, measures, evenness, optimizers, schedules, augmentations, recipes, "
            "figures, layers)",
        ),
        (
            ["export", "run", "--to", "tflite"],
            "hypersphere export: --to must be one of onnx, torch, safetensors; got 'tflite'",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_the_user_can_mend(argv, line, capsys):
    assert main(argv) == 2
    assert capsys.readouterr() == ("", line + "\n")


def test_without_a_command_the_help_is_printed(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert main([]) == 2
    assert capsys.readouterr() == ("", text)


def test_interrupted(monkeypatch, capsys):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("hypersphere.geometry.minimize_energy", interrupt)
    assert main(["thomson", "5"]) == 130
    assert capsys.readouterr() == ("", "")


def run_to(stdout):
    """`hypersphere --help` in a process of its own: exit code and stderr."""
    command = [sys.executable, "-m", "hypersphere", "--help"]
    # Unbuffered, argparse sees the error first, and ignores it.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, env=environment)
    return done.returncode, done.stderr


def test_reader_that_has_enough():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        assert run_to(pipe) == (141, "")


@pytest.mark.slow
def test_reader_that_has_enough_of_a_long_answer(monkeypatch, capsys):
    """A pipe that closes while a command prints is no error of its input."""

    def closed(*_, **__):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("hypersphere.cli.reproduce.print_table", closed)
    monkeypatch.setattr("hypersphere.cli._give_up_stdout", lambda: None)
    assert main(["reproduce"]) == 141
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_full_disk():
    with open("/dev/full", "w") as full:
        assert run_to(full) == (2, "hypersphere: [Errno 28] No space left on device\n")


# --------------------------------------------------------------------------------------------- thomson


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("5-2", "argument N: must be a number >= 1, or a range upwards like 2-32, got '5-2'"),
        ("9" * 30, f"argument N: must be a number >= 1, or a range upwards like 2-32, got '{'9' * 30}'"),
        ("5 --s nan", "argument --s: must be a number >= 0, or inf, got 'nan'"),
        ("5 --s 1e7", "s must be finite and >= 0 and <= 1e+06, got 10000000.0 (inf is allowed too)"),
        ("5 --dim 1", "argument --dim: must be an integer >= 2, got '1'"),
        ("5 100000 --dim 101", "n·dim must be <= 10000000, got 100000·101"),
        ("5 --starts 0", "argument --starts: must be an integer >= 1, got '0'"),
        ("5 --out /nowhere/x", "argument --out: must be a file in a folder that exists, got '/nowhere/x'"),
        ("5 6 --out x", "argument --out: needs a single N, got 2"),
    ],
    ids=lambda value: value if value[:8] != "argument" else "",
)
def test_bad_input(argv, line, capsys):
    assert main(["thomson", *argv.split()]) == 2
    assert capsys.readouterr() == ("", f"hypersphere thomson: {line}\n")


def test_table(ready_made, capsys):
    assert main(["thomson", "1-3", "5", "12", "--starts", "4"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    title, header, *rows = out.splitlines()
    assert title == "sum of distance^-1 over unordered pairs, 3 dimensions"
    assert header.split("  ")[-2:] == ["separation (degrees)", "seconds"]
    assert len({len(line) for line in (header, *rows)}) == 1
    cells = [row.split() for row in rows]
    assert [row[0] for row in cells] == ["1", "2", "3", "5", "12"]
    assert cells[0] == ["1", "0.000000000", "0.000000000", "0", "–", "1.00"]
    assert cells[1] == ["2", "0.500000000", "0.500000000", "0", "180.000000000", "1.00"]
    assert cells[4][1:3] == ["49.165253058", "49.165253058"]
    assert abs(float(cells[4][3])) < 1e-10
    assert abs(float(cells[4][4]) - 63.4349488) < 1e-6


@pytest.mark.slow
def test_tables_of_other_powers(capsys):
    assert main(["thomson", "4", "--s", "0", "--dim", "5"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("sum of -log distance over unordered pairs, 5 dimensions\n")
    assert out.splitlines()[2].split()[1] == f"{-3 * math.log(8 / 3):.9f}"
    assert main(["thomson", "7", "--s", "2.5", "--starts", "1"]) == 0  # no known minimum
    title, _, row = capsys.readouterr().out.splitlines()
    assert title.startswith("sum of distance^-2.5 over")
    assert row.split()[2:4] == ["–", "–"]
    assert main(["thomson", "4", "20", "--s", "inf", "--starts", "1"]) == 0
    title, header, first, second = capsys.readouterr().out.splitlines()
    assert title.startswith("largest least angle")
    assert header.count("(degrees)") == 3
    assert first.split()[:3] == ["4", "109.471220634", "109.471220634"]
    assert abs(float(first.split()[3])) < 1e-13
    assert second.split()[2:4] == ["–", "–"]


def test_json_and_points(tmp_path, capsys):
    file = tmp_path / "points.csv"
    assert main(["thomson", "12", "--json", "--starts", "4", "--seed", "3", "--out", str(file)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    row = json.loads(out)
    points = [[float(cell) for cell in line] for line in csv.reader(file.open())]
    assert [len(point) for point in points] == [3] * 12
    energy = sum(1 / math.dist(points[i], points[j]) for i in range(12) for j in range(i))
    assert energy == pytest.approx(row["energy"], abs=1e-12)
    assert list(row) == ["n", "dim", "s", "energy", "known", "difference", "separation", "angles", "seconds"]
    assert (row["n"], row["dim"], row["s"], row["angles"]) == (12, 3, 1.0, "radians")
    assert abs(row["energy"] - 49.165253058) < 1e-9
    assert row["difference"] == row["energy"] - row["known"]
    assert abs(row["separation"] - math.acos(1 / math.sqrt(5))) < 1e-8
    assert row["seconds"] > 0


def test_json_of_several_and_of_tammes(capsys):
    assert main(["thomson", "1-4", "--json", "--s", "inf"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["n"] for row in rows] == [1, 2, 3, 4]
    assert all(row["s"] == "inf" and row["energy"] is None for row in rows)
    assert rows[0]["separation"] is rows[0]["known"] is rows[0]["difference"] is None
    assert rows[1]["separation"] == rows[1]["known"] == math.pi


def test_json_has_no_infinity(capsys):
    """Energies that no float holds are the largest float."""
    assert main(["thomson", "100", "--dim", "2", "--s", "1e5", "--json"]) == 0
    row = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert row["energy"] > 1e307
    assert row["known"] > 1e307


def test_points_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    def fail(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hypersphere._internal.safe_files.write_text", fail)
    assert main(["thomson", "4", "--out", str(tmp_path / "x")]) == 2
    out, err = capsys.readouterr()
    assert "3.674234614" in out  # what was found is not lost
    assert err == "hypersphere thomson: [Errno 13] Permission denied\n"


def test_options_reach_the_search(monkeypatch, capsys):
    import torch

    calls = []

    def record(*args, **options):
        calls.append((args, options))
        return torch.eye(3, dtype=torch.float64)

    monkeypatch.setattr("hypersphere.geometry.minimize_energy", record)
    assert main(["thomson", "3", "--dim", "4", "--s", "2", "--starts", "7", "--seed", "5"]) == 0
    assert main(["thomson", "3", "3"]) == 0
    assert calls[0] == ((3, 4, 2.0), {"starts": 7, "seed": 5, "progress": True})
    assert calls[1] == ((3, 3, 1.0), {"starts": None, "seed": 0, "progress": False})  # the bar counts the rows


# -------------------------------------------------------------------------------------------- progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def watch(monkeypatch, delay):
    """Two items on a terminal, the second once the bar had its chance; what was written."""
    stderr, tried = Terminal(), threading.Event()

    class Watched(threading.Timer):
        def run(self):
            super().run()
            tried.set()

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "DELAY", delay)
    monkeypatch.setattr(progress, "Timer", Watched)
    for item in progress.track("ab", "turning [red]"):
        if delay < 1 and item == "a":
            assert tried.wait(30)
    return stderr.getvalue()


def test_bar_on_a_terminal(monkeypatch):
    text = watch(monkeypatch, 0.01)
    assert "turning [red]" in text
    assert "0/2" in text
    assert text.endswith("\x1b[1A\x1b[2K")  # one line up, and cleared


def test_no_bar_before_two_seconds(monkeypatch):
    assert progress.DELAY == 2.0
    assert watch(monkeypatch, 1000.0) == ""
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())


def test_no_bar_without_rich(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert watch(monkeypatch, 1000.0) == ""


def test_no_bar_off_a_terminal(monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "Timer", None)  # is not even asked for
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    assert list(progress.track(iter([1, 2, 3]), "counting")) == [1, 2, 3]
    monkeypatch.setattr(sys, "stderr", None)
    assert list(progress.track(iter([1, 2, 3]), "counting")) == [1, 2, 3]
    assert stderr.getvalue() == ""


def test_bar_goes_when_the_work_fails(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    items = progress.track([1, 2], "working")
    next(items)
    items.close()
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())


def test_nothing_is_said_on_stdout_where_there_is_no_stderr(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr", None)
    assert main(["evaluate", "nothing"]) == 2
    monkeypatch.undo()
    assert capsys.readouterr().out == ""


def test_no_control_character_reaches_the_terminal(capsys):
    for words in (["evaluate", "\x1b[31mred"], ["train", "--\x1b[31mred"], ["verify", "a\rb"]):
        assert main(words) == 2
        err = capsys.readouterr().err
        assert "\x1b" not in err
        assert "\r" not in err
        assert err.count("\n") == 1
