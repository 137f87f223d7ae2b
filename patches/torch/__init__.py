"""Patches of torch's own data parallel classes, which all toolkits use."""
