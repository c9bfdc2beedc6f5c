"""Rotary formulas: frequencies, their scalings, exact tables, and the rotation itself."""
