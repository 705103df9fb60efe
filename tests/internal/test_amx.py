"""CPUs that report AMX and trap on it. Most machines cannot show this, so a script plays the process that dies."""

import os
import subprocess
import sys

import pytest

from hypersphere._internal import amx
from hypersphere.cli import main

pytestmark = pytest.mark.slow


@pytest.fixture
def cpu(tmp_path, monkeypatch):
    """A CPU that reports AMX; the returned function says under which limits a trial dies by SIGILL."""
    cpu_info, python, trials = tmp_path / "cpuinfo", tmp_path / "python", tmp_path / "trials"
    cpu_info.write_text("flags\t\t: fpu amx_bf16 avx512_fp16 amx_tile amx_int8\n")
    monkeypatch.setattr(amx, "_CPU_INFO", cpu_info)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv(amx.VARIABLE, "")  # what a test sets is taken back in the end
    monkeypatch.delenv(amx.VARIABLE)
    amx.avoid_trapping_amx.cache_clear()

    def dies_under(*limits):
        cases = "".join(f"{limit!r}) kill -ILL $$;;\n" for limit in limits)
        python.write_text(f'#!/bin/sh\necho "${amx.VARIABLE}" >> {trials}\ncase "${amx.VARIABLE}" in\n{cases}esac\n')
        python.chmod(0o700)
        return trials

    yield dies_under
    amx.avoid_trapping_amx.cache_clear()


@pytest.mark.parametrize(
    ("deadly", "limit"),
    [
        ([], None),
        ([""], "AVX512_CORE_FP16"),
        (["", "AVX512_CORE_FP16"], "AVX512_CORE_BF16"),
        (["", "AVX512_CORE_FP16", "AVX512_CORE_BF16"], "AVX512_CORE_BF16"),
    ],
)
def test_the_largest_instruction_set_that_survives_is_set(cpu, deadly, limit):
    cpu(*deadly)
    line = amx.avoid_trapping_amx()
    assert os.environ.get(amx.VARIABLE) == limit
    assert (line is None) == (limit is None)
    assert line is None or line.endswith(f"ONEDNN_MAX_CPU_ISA={limit} is set")


def test_nothing_is_tried_without_amx_or_with_a_limit_of_the_user(cpu, monkeypatch):
    trials = cpu("")
    monkeypatch.setenv(amx.VARIABLE, "AVX2")
    assert amx.avoid_trapping_amx() is None
    assert os.environ[amx.VARIABLE] == "AVX2"
    amx.avoid_trapping_amx.cache_clear()
    monkeypatch.delenv(amx.VARIABLE)
    amx._CPU_INFO.write_text("flags\t\t: fpu avx512_bf16\n")
    assert amx.avoid_trapping_amx() is None
    amx.avoid_trapping_amx.cache_clear()
    amx._CPU_INFO.unlink()  # not Linux
    assert amx.avoid_trapping_amx() is None
    assert not trials.exists()


def test_train_with_amp_says_so_in_one_line_and_plain_training_tries_nothing(cpu, tmp_path, capsys):
    trials = cpu("")
    command = ["train", "--steps=1", "--quiet", "--model.widths=4,4,4", f"--out={tmp_path / 'plain'}"]
    assert main(command) == 0
    assert not trials.exists()
    capsys.readouterr()
    assert main([*command[:-1], f"--out={tmp_path / 'amp'}", "--amp=bfloat16"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "AMX" in line]
    assert said == [
        "hypersphere: amp: this CPU reports AMX but bfloat16 products end in 'Illegal instruction': "
        "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 is set"
    ]
    assert trials.read_text().splitlines() == ["", "AVX512_CORE_FP16"]


def test_the_trial_runs_here():
    """The real child: it ends by itself or by a signal, never by an exception of Python."""
    assert subprocess.run([sys.executable, "-c", amx._TRIAL], capture_output=True).returncode <= 0
