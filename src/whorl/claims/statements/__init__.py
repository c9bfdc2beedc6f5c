"""Statements of the study notes that are wrong or half true, each with what is right."""
