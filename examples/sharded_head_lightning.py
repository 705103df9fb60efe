"""Lightning: ModelParallelStrategy splits the body by FSDP2 and the head by classes.

python examples/sharded_head_lightning.py --devices 2 --steps 100
"""

import argparse

import lightning
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard

import hypersphere as hs
from hypersphere.losses import shard_head


class Classifier(lightning.LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        self.head = hs.AMSoftmaxLoss(classes, 32, device="meta")

    def configure_model(self) -> None:
        if self.head.shards is None:  # Lightning calls it again for validation
            mesh = self.device_mesh["data_parallel"]
            fully_shard(self.body, mesh=mesh)
            shard_head(self.head, mesh)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, y = batch
        loss: torch.Tensor = self.head(self.body(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(hs.param_groups(self, weight_decay=0.01), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--classes", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--accelerator", default="auto")
    options = parser.parse_args()
    torch.manual_seed(0)
    labels = torch.randint(options.classes, (4096,))
    inputs = (labels.unsqueeze(1) >> torch.arange(32)) % 2 * 2.0 - 1.0  # the code of the class
    data = torch.utils.data.TensorDataset(inputs, labels)
    strategy = ModelParallelStrategy(data_parallel_size=options.devices, tensor_parallel_size=1)
    trainer = lightning.Trainer(
        accelerator=options.accelerator,
        devices=options.devices,
        strategy=strategy,
        max_steps=options.steps,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(Classifier(options.classes), torch.utils.data.DataLoader(data, batch_size=64, shuffle=True))
    if trainer.is_global_zero:
        print(f"loss {trainer.callback_metrics['loss'].item():.4f}")


if __name__ == "__main__":
    main()
