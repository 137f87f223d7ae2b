"""Here for what ddpfix recognises a version of WeNet by."""


class Executor:
    pass
