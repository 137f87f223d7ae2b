"""``ddpfix demo``: two real ranks on the CPU, first the failure, then the fix."""
