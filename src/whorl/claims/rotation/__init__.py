"""Claims about the rotation itself: what R_m is, what it keeps, and what its derivation does and does not fix."""
