"""The comparison as the report reads it, by the names that the report has for it."""

from whorl.results import (
    AS_TRAINED,
    NOISE,
    PROTOCOLS,
    RECALL,
    TASK,
    WINDOW,
    Cell,
    Row,
    finite,
    lengths_of,
)
from whorl.results import ComparisonResult as Reading

read = Reading.of

__all__ = [
    "AS_TRAINED",
    "NOISE",
    "PROTOCOLS",
    "RECALL",
    "TASK",
    "WINDOW",
    "Cell",
    "Reading",
    "Row",
    "finite",
    "lengths_of",
    "read",
]
