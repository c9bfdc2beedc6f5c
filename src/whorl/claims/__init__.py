"""The ledger of claims: what the field says of position encodings, and the measured verdict."""

from whorl.claims.ledger import Claim, Finding, Row, Verdict, every, find
from whorl.claims.verifying import verify

__all__ = ["Claim", "Finding", "Row", "Verdict", "every", "find", "verify"]
