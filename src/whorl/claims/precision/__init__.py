"""Claims about precision: angles, positions, frequencies and biases in float32 and below."""
