"""The fixes of NeMo."""
