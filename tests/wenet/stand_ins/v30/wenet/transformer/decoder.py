"""Here for the name under which it takes checkpoints from torch."""

import torch.utils.checkpoint as ckpt

__all__ = ["ckpt"]
