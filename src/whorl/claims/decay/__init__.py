"""Claims about long-range decay: curves, and the bound by Abel summation."""
