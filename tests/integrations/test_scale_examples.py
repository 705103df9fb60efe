"""The examples of sharded heads in accelerate and Lightning run, at tiny size."""

from tests.repo.test_scale import EXAMPLES, TINY, TORCHRUN, losses, run


def test_accelerate() -> None:
    assert len(losses(run(*TORCHRUN, str(EXAMPLES / "sharded_head_accelerate.py"), "--cpu", *TINY))) == 1


def test_lightning() -> None:
    command = [str(EXAMPLES / "sharded_head_lightning.py"), "--accelerator", "cpu"]
    assert len(losses(run(*command, "--classes", "50", "--steps", "6"))) == 1
