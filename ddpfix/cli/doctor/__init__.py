"""``ddpfix doctor``: what is here, what would stop a training, and what to do about it."""
