import os
import sys
import warnings

warnings.simplefilter("ignore")
import lightning.pytorch as pl  # noqa: E402
import torch  # noqa: E402
from lightning.pytorch.plugins.environments import LightningEnvironment  # noqa: E402


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05)


os.environ["NODE_RANK"] = "0"
pl.seed_everything(3)
model = Model()
data = torch.utils.data.DataLoader(torch.arange(64.0).reshape(16, 4).sin(), batch_size=2)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
environment = LightningEnvironment()
strategy = pl.strategies.DDPStrategy(cluster_environment=environment, process_group_backend="gloo")
trainer = pl.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=3, **quiet)
trainer.fit(model, data)
print([each.tolist() for each in model.parameters()])
sys.exit(0)
