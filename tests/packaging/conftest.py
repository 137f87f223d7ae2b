from tests.activation.fixtures import installed, real, requirements, stock, torch_folder, wheel

__all__ = ["installed", "real", "requirements", "stock", "torch_folder", "wheel"]
