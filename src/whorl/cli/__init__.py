"""The ``whorl`` command."""
