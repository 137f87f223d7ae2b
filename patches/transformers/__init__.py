"""HuggingFace transformers: LayerDrop, what its Trainer and accelerate lose on the way to DDP, checkpointing."""
