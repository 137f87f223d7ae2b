"""A table of training programs under DDP: each in plain torch, by hand without DDP, and under ddpfix."""
