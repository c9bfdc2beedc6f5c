"""``whorl families``: how each family of models handles positions."""

from whorl.cli.options import Json
from whorl.cli.output import say_json, say_table, suggest


def families(as_json: Json = False) -> None:
    """Families of models that whorl inspect knows: layout, rotated part, base, and layers without rotation."""
    from whorl.bridge.family_table import HEADER
    from whorl.bridge.family_table import families as rows_of_families

    rows = rows_of_families()
    if as_json:
        say_json(rows)
        return
    say_table(HEADER, [tuple(row[name] for name in HEADER) for row in rows])
    suggest("whorl inspect config.json")
