"""What the code of several toolkits was copied from: it is none of them, and all may import it."""
