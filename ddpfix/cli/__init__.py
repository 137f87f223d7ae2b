"""The commands of ``python -m ddpfix``."""
