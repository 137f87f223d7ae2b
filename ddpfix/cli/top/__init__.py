"""``ddpfix top``: a live table of the ranks whose trace is in a folder."""
