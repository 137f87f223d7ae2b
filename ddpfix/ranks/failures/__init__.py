"""A rank that fails tells the others why, and one that ends because of another one finds the cause."""
