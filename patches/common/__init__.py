"""Patches of code that several toolkits have copied; the folder of every toolkit may import them."""
