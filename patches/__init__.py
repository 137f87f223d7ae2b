"""The fixes, one folder a toolkit. They are imported as ``ddpfix.patches``, and under no other name.

A new toolkit is a folder here and a block in ``compat_matrix.yaml``; ``docs/dev/adding-a-toolkit.md`` adds one.
"""

if __name__ == "patches":
    raise ImportError("this folder belongs to ddpfix: import it as ddpfix.patches")
