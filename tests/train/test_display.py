"""What a person sees of a training: the bar, plain lines, nothing; and what is seen after it."""

import errno
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from hypersphere.train import display
from hypersphere.train.storage.metrics import MetricsLine

ENERGIES = {"layers.0": 100.25, "layers.1": 22.0}
TEST = MetricsLine(50, "test", values={"loss": 0.31234, "accuracy": 0.93125}, energies=ENERGIES, seconds=3.2)
TRAIN = MetricsLine(50, "train", values={"loss": 0.25, "accuracy": 0.9, "lr": 0.1}, seconds=3.0)


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(display, "time", clock)
    return clock


class Terminal(io.StringIO):
    """So that one sees what was flushed."""

    seen = ""

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.seen = self.getvalue()


def not_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """As sys.stderr. Not a fixture: pytest puts its own stderr in place between fixtures and test."""
    stream = Terminal()
    monkeypatch.setattr(stream, "isatty", lambda: False)
    monkeypatch.setattr("sys.stderr", stream)
    return stream


def bar(width: int, title: str = "cnn on digits") -> display.Bar:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system="standard")
    return display.Bar(title, 400, 0, console)


def drawn(screen: display.Bar) -> str:
    """The line as it is now, the half characters between what is done and what is not as whole ones."""
    console = Console(file=io.StringIO(), width=screen.bar.console.width)
    console.print(screen.bar.render())
    return re.sub("[╸╺]", "━", console.file.getvalue().removesuffix("\n")).rstrip()


def test_time_left_counts_all_and_speed_is_that_of_the_last_line(clock):
    screen = display.Display("mlp", 100, 10)
    assert (screen.left, screen.rate) == (None, None)
    for step in range(11, 21):
        clock.now += 4
        screen.advance(step)
    assert screen.left == 80 * 4
    screen.show(replace(TRAIN, values={"samples_per_second": 640.0}))
    assert screen.rate == 640


# ---------------------------------------------------------------------------------------------------- plain lines


def test_plain_lines(monkeypatch, clock):
    stderr = not_a_terminal(monkeypatch)
    with display.make("mlp on digits", 400, 40) as screen:
        screen.note("resumed at step\n40\x1b[2J")
        assert stderr.seen == "mlp on digits: 400 steps\nresumed at step\\n40\\x1b[2J\n"
        clock.now += 1
        screen.advance(50, 0.5)
        screen.show(TRAIN)
        screen.show(TEST)
        values = {"loss": None, "accuracy": 1.0}
        screen.show(MetricsLine(400, "validation", values=values, energies=ENERGIES, seconds=4000.0))
        screen.show(MetricsLine(5, "test", values={"discriminator_loss": -1.5, "generator_loss": 12345.6}))
        screen.show(MetricsLine(6, "test", values={"loss": 2e-7}, energies={"a": None, "b": 1.0}))
        assert stderr.seen == stderr.getvalue()
    assert stderr.getvalue().splitlines()[2:] == [
        "step  50  test        loss  0.3123  accuracy  93.12%  energy   122.2     0:03",
        "step 400  validation  loss       –  accuracy 100.00%  energy   122.2  1:06:40",
        "step   5  test        discriminator    -1.5  generator 1.235e+04",
        "step   6  test        loss   2e-07  energy       –",
    ]


def test_a_plain_line_of_the_training_after_ten_seconds(monkeypatch, clock):
    stderr = not_a_terminal(monkeypatch)
    screen = display.make("mlp", 1000)
    for step in range(1, 76):
        clock.now += 0.3
        screen.advance(step, 1 / step)
    assert stderr.seen.splitlines()[1:] == [
        "step   34  train       loss 0.02941  4:50",
        "step   68  train       loss 0.01471  4:40",
    ]
    screen.show(TEST)  # and the ten seconds begin again
    for step in range(76, 108):
        clock.now += 0.3
        screen.advance(step)
    assert len(stderr.seen.splitlines()) == 4


@pytest.mark.parametrize("has_rich", [True, False])
def test_no_escape_codes_without_rich_or_in_a_file_whatever_is_forced(has_rich, monkeypatch):
    stderr = not_a_terminal(monkeypatch) if has_rich else Terminal()
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setenv("FORCE_COLOR", "1")
    if not has_rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    with display.make("mlp", 400) as screen:
        screen.show(TEST)
    assert type(screen) is display.Plain
    assert "\x1b" not in stderr.getvalue()
    assert len(stderr.getvalue().splitlines()) == 2


@pytest.mark.parametrize("form", ["disabled", "none", "closed", "broken"])
def test_where_nothing_can_be_shown_nothing_happens(form, monkeypatch, capfd):
    class Broken(Terminal):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, "gone")

        def isatty(self) -> bool:
            return False

    streams = {"disabled": Terminal(), "none": None, "closed": io.StringIO(), "broken": Broken()}
    stream = streams[form]
    if form == "closed":
        stream.close()
    monkeypatch.setattr("sys.stderr", stream)
    with display.make("mlp", 400, enabled=form != "disabled") as screen:
        screen.advance(1, 2.5)
        screen.show(TRAIN)
        screen.show(TEST)
        screen.note("a note")
    screen.close()
    assert (screen.step, screen.loss, screen.accuracy, screen.energy) == (1, 0.25, 0.93125, 122.25)
    assert form != "disabled" or stream.getvalue() == ""
    assert capfd.readouterr() == ("", "")


# ------------------------------------------------------------------------------------------------------------ bar


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (200, "cnn on digits  ━━━━━━━━━━━\\s+100/400  loss 0.4123  acc 93.12%  energy 122.2  5000/s  5:00"),
        (80, "  ━━━━\\s+100/400  loss 0.4123  acc 93.12%  energy 122.2  5000/s  5:00"),
        (30, r".*loss 0.4.*…"),
    ],
)
def test_the_bar_is_one_line_with_room_for_an_interrupt(clock, width, line):
    with bar(width) as screen:
        for step in range(1, 101):
            clock.now += 1
            screen.advance(step, 0.41234)
        screen.show(replace(TRAIN, values={"loss": 0.41234, "samples_per_second": 5000.0}))
        screen.show(replace(TEST, step=100))
        seen = drawn(screen)
    assert cell_len(seen) <= width - 2
    assert re.fullmatch(line, seen)


@pytest.mark.parametrize("width", [20, 80])
def test_a_line_of_an_evaluation_does_not_wrap(width):
    with bar(width) as screen:
        before = screen.bar.console.file.getvalue()
        screen.show(TEST)
        printed = screen.bar.console.file.getvalue()[len(before) :]
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed).splitlines()
    (line,) = [text for text in lines if text.strip() and "/400" not in text]  # that is the bar
    assert len(line.strip("\r")) <= width
    assert ("energy   122.2" in line) == (width == 80)


def test_the_bar_is_there_within_with():
    ours = sys.stderr
    with bar(80) as screen:
        assert "0/400" in screen.bar.console.file.getvalue()
        assert screen.bar.live.is_started
    assert not screen.bar.live.is_started
    assert sys.stderr is ours


def test_a_terminal_that_is_gone_does_not_stop_the_training():
    with bar(80) as screen:
        screen.bar.live._refresh_thread.stop()
        screen.bar.live._refresh_thread.join()

        def gone(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        screen.bar.console.file.write = gone
        screen.advance(1)
        screen.show(TEST)
        screen.note("a note")


# ---------------------------------------------------------------------------------------------- on a real terminal

SCRIPT = """
import os, sys, time
from hypersphere.train.display import make
from hypersphere.train.storage.metrics import MetricsLine

with make("cnn on digits", 400, 99) as screen:
    screen.note("resumed at step 99")
    for step in range(100, 151):
        screen.advance(step, 0.5)
        time.sleep(0.01)
    screen.show(MetricsLine(150, "train", values={"loss": 0.25}))
    screen.show(MetricsLine(150, "test", values={"loss": 0.3125, "accuracy": 0.5}, seconds=1.0, energies={"a": 2.0}))
    print("from a callback")
    print("an error of a callback", file=sys.stderr)
    if not (child := os.fork()):
        os._exit(hasattr(sys.stderr, "rich_proxied_file"))
    assert hasattr(sys.stderr, "rich_proxied_file")
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    raise RuntimeError("broken")
"""


def on_terminal(width: int) -> str:
    """What the script writes to a terminal of `width` columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    removed = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")
    env = {**{k: v for k, v in os.environ.items() if k not in removed}, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SCRIPT], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    )
    os.close(theirs)
    data = b""
    with suppress(OSError):  # the other end is closed
        while piece := os.read(ours, 65536):
            data += piece
    os.close(ours)
    assert process.wait() == 1
    return data.decode()


@pytest.mark.slow
def test_on_a_terminal_the_bar_is_seen_and_gone_after_an_error():
    text = on_terminal(80)
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "━  150/400  loss 0.25  acc 50.00%" in seen
    for line in (
        "cnn on digits: 400 steps",
        "resumed at step 99",
        "step 150  test        loss  0.3125  accuracy  50.00%  energy       2     0:01",
        "from a callback",
        "an error of a callback",
        "child 0",
    ):
        assert line in seen
    after = text[text.rindex("\x1b[?25h") :]  # the cursor is back
    assert text.rindex("\x1b[?25l") < text.rindex("\x1b[?25h")
    assert "━" not in after
    assert seen.rstrip().endswith("RuntimeError: broken")
