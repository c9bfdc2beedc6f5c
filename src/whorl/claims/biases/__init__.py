"""Claims about biases and terms on the scores: ALiBi, T5, KERPLE, FIRE, Sandwich, Shaw and others, masks, and none."""
