"""Processes of a training with a sharded head are killed; torchrun restarts them, and the result is the same."""

import pytest

from tests.losses.kill_ranks import check

pytestmark = pytest.mark.slow


def test_killed_processes_recover_to_the_last_bit(tmp_path):
    """tests/losses/kill_ranks.py does the same with any number of kills."""
    assert check(tmp_path, kills=1, steps=60, every=20) == 1
