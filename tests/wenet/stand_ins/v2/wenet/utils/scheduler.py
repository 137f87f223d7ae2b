from tests.wenet.uneven_by_hand import Warmup as WarmupLR

__all__ = ["WarmupLR"]
