"""Processes of a training with a sharded head are killed; torchrun restarts them, and the result is the same."""

from tests.losses.kill_ranks import check


def test_killed_processes_recover_to_the_last_bit(tmp_path):
    """tests/losses/kill_ranks.py does the same with any number of kills."""
    runs = (check(tmp_path / str(steps), kills=1, steps=steps, every=20) for steps in (60, 300, 1500))
    assert 1 in runs  # a longer one only if the training ended before it was killed
