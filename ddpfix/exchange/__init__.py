"""What ranks tell each other through the store of the process group; nothing else in ddpfix touches one."""
