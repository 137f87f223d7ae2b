"""``ddpfix report``: one HTML page about one traced run, or two side by side."""
