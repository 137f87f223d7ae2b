"""Here for what ddpfix recognises a version of WeNet by."""
