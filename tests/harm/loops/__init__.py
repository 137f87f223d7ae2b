"""Random training loops: each in plain torch, under ddpfix, and with gradients averaged by hand."""
