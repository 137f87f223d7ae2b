"""Takes names of typing from torch, which had them by accident."""

from torch.nn.modules.conv import Optional, Union

__all__ = ["Optional", "Union"]
