"""The fixes, one folder a toolkit. They are imported as ``ddpfix.patches``, and under no other name."""

if __name__ == "patches":
    raise ImportError("this folder belongs to ddpfix: import it as ddpfix.patches")
