"""The fixes of ESPnet (espnet2)."""
