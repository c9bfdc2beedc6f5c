"""The questions the study notes ask, each measured, or open with the reason."""
