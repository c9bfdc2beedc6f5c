"""The probe: calls whorl's public API on seeded input and writes down what comes back, one file per group of calls.

It is run once on each of two commits by tools/compare_commits.py, so it must run on both: nothing of it imports more of
whorl than its public names, and a call that raises is a result like any other.
"""
