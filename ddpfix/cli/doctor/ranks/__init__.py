"""``ddpfix doctor --ranks``: whether these ranks can train together, before the job that would find out."""
