"""The programs, one file a kind, written as users write them: none of them knows ddpfix."""
