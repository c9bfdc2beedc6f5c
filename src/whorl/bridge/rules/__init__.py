"""Lint rules: what goes wrong with positions in config files, each rule with an id, a severity and a remedy.

A rule looks at plain facts, without torch. None advises to drop a field whose effect is not known.
"""

from whorl.bridge.rules import layers, numbers, schema, two_files, unread
from whorl.bridge.rules.facts import Rule

RULES: tuple[Rule, ...] = (*schema.RULES, *unread.RULES, *two_files.RULES, *numbers.RULES, *layers.RULES)
