"""The fixes of torchaudio."""
