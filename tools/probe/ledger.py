"""The ledger of claims, as ``whorl verify --json`` prints it, without versions and times."""

from __future__ import annotations

import json

from probe.recording import Probe
from probe.texts import said


def run(probe: Probe) -> None:
    with probe.guarded("document"):
        answer = said(["verify", "--json"]).split("\n", 1)[1]
        document, _ = json.JSONDecoder().raw_decode(answer)
        for claim in (*document.pop("claims"), *document.pop("flags", [])):
            name = claim["id"].replace(":", " ")
            probe.add(f"claim {name}", json.dumps({key: claim[key] for key in claim if key != "seconds"}, indent=1))
        left_out = {"seconds", "whorl", "torch"}
        probe.add("document", json.dumps({key: document[key] for key in document if key not in left_out}))
