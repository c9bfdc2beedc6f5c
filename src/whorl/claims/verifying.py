"""``verify``: runs the ledger, or the part of it that is about some encodings."""

from __future__ import annotations

from collections.abc import Iterable

from whorl import Encoding, registry
from whorl.claims import flags, formulas, ledger
from whorl.claims.ledger import Claim, Row
from whorl.claims.probes import build
from whorl.errors import invalid

Which = str | Encoding | type[Encoding]


def verify(encodings: Which | Iterable[Which] | None = None) -> list[Row]:
    """One row for each claim about these encodings, computed now: the statement, the numbers, the verdict.

    ``None`` is the whole ledger. A name or a registered class brings what is written of it, and its own flags and
    cache at small sizes; an encoding itself the same with its own settings. An encoding that is not whorl's has only
    its own.

    >>> import whorl.claims
    >>> rows = whorl.claims.verify("none")
    >>> next(str(row.verdict) for row in rows if row.id == "none.equivariant")
    'holds within 1e-12'
    >>> all(row.as_expected for row in rows)
    True
    """
    if encodings is None:
        return ledger.run(ledger.every())
    asked = [encodings] if isinstance(encodings, (str, Encoding, type)) else list(encodings)
    chosen: dict[str, Claim] = {}
    for which in asked:
        chosen |= {claim.id: claim for claim in claims_about(which)}
    return ledger.run(chosen.values())


def claims_about(which: Which) -> list[Claim]:
    """The claims about an encoding, which is given itself, by its class or by its name."""
    if isinstance(which, Encoding):
        name, cls = which.config.name, type(which)
        made = list(flags.of_encoding(name, lambda: which))
    elif isinstance(which, str) or (isinstance(which, type) and issubclass(which, Encoding)):
        name = which if isinstance(which, str) else which.Config.name
        if name in registry.JOINED:
            raise invalid("verify", "encoding", "a registered name, or the joined encoding itself", name)
        cls = registry.encoding_class(which) if isinstance(which, str) else which
        of_formula = (claim for claim in formulas.claims() if name in claim.about and _is_registered(name, cls))
        made = [*flags.of_encoding(name, lambda: build(cls)), *of_formula]
    else:
        raise invalid("verify", "encodings", "names, encodings or encoding classes", which)
    return [*(claim for claim in ledger.written() if name in claim.about and _is_registered(name, cls)), *made]


def _is_registered(name: str, cls: type[Encoding]) -> bool:
    """Whether a name is that of this class, and not of another one that it was made from."""
    return name in {**registry.ENCODINGS, **registry.JOINED} and registry.encoding_class(name) is cls
