"""Tests that others have written: torch's own of DDP and accelerate's scripts, stock and under ddpfix."""
