from tests.activation.conftest import installed, real, requirements, torch_folder, unpatched, wheel

__all__ = ["installed", "real", "requirements", "torch_folder", "unpatched", "wheel"]
