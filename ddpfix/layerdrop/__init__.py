"""Layers that all ranks skip alike. Nothing here depends on a toolkit: what is particular to one is an argument."""
