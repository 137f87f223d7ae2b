from tests.activation.fixtures import installed, real, requirements, torch_folder, unpatched, wheel

__all__ = ["installed", "real", "requirements", "torch_folder", "unpatched", "wheel"]
