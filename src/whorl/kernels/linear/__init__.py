"""Causal linear attention in Triton, one file for each stage; ``passes`` is the data flow."""
