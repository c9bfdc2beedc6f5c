"""Claims about sinusoidal codes, and what an ideal encoding should do."""
