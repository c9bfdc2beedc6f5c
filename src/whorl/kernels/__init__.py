"""Implementations of the formulas, and the choice between them."""
