"""Compiles ``compat_matrix.yaml`` for the package, at build and in a checkout. It needs PyYAML, and is not shipped."""
