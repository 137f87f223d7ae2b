"""What several toolkits share: code that they have copied, models that DDP wraps. Each folder may import it."""
