"""Claims about context extension: interpolation, NTK, YaRN, remapped positions, and what scales scores."""
