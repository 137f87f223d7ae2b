import warnings

warnings.simplefilter("ignore")
import lightning  # noqa: E402
import torch  # noqa: E402

from tests.support import small_lightning  # noqa: E402

lightning.seed_everything(3)
model = torch.nn.Linear(4, 1)
small_lightning.fit(model, (16, 4), steps=12)
print([each.tolist() for each in model.parameters()])
