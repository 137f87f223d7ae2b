"""What holds for every toolkit, because all of them end in torch's own data parallel classes."""
