"""Fixes for FunASR 1.0.0 to 1.4.16."""
