"""Layers that all ranks skip alike. No toolkit is known here: what is particular to one comes in as an argument."""
