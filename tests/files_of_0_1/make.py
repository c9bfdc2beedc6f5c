"""Writes the files beside it. Run once, with the code of version 0.1.0 (commit fc3e868) on the path:

    cd tests/files_of_0_1 && PYTHONPATH=OLD/src python make.py

Encodings: their settings, their parameters, the modules as pickle keeps them, and what each makes of the same tokens.
Runs: one that is finished, and one that was broken off behind a checkpoint.
"""

import contextlib
import json
import shutil
import warnings
from pathlib import Path

import torch

import whorl
import whorl.lab
from whorl.lab.plan import plan

HOME = Path(__file__).parent
TEXT = Path("/tmp/whorl-0.1/text.txt")  # not kept: a run has its text beside it
SIZES = {"heads": 2, "head_dim": 8, "width": 16, "length": 16}
SCALED = {
    "linear": whorl.Linear(factor=2.0),
    "yarn": whorl.Yarn(factor=4.0, original_length=8),
    "longrope": whorl.LongRope(short_factor=[1.0] * 4, long_factor=[1.0, 1.5, 2.0, 4.0], factor=4.0, original_length=8),
    "llama3": whorl.Llama3(factor=8.0, original_length=64),
}
RUN = {
    **{"corpus": str(TEXT), "layers": 1, "width": 16, "heads": 2, "eval_bytes": 512, "train_length": 16},
    **{"steps": 6, "batch": 4, "lengths": [8, 16, 32], "seeds": 1},
}


def built():
    """Every encoding by name, small, its parameters moved from their start; RoPE with some scalings; two joined."""
    draw = torch.Generator().manual_seed(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = {name: whorl.build_for(name, **SIZES) for name in whorl.names()}
    found |= {f"rope {name}": whorl.Rope(head_dim=8, scaling=scaling) for name, scaling in SCALED.items()}
    found["rope+alibi"] = whorl.Combined(whorl.Rope(head_dim=8), whorl.Alibi(heads=2))
    with torch.no_grad():
        for encoding in found.values():
            for parameter in encoding.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=draw)
    return found


def attended(encoding, length=12):
    """What attention makes of the same tokens with an encoding, and what it adds to an input of zeros."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, length, 8, generator=draw) for _ in range(3))
    hidden = {"hidden": torch.randn(1, length, 16, generator=draw)} if encoding.reads_hidden else {}
    out = whorl.attention(q, k, v, encoding=encoding, causal=True, **hidden)
    added = encoding.add_to_input(torch.zeros(1, length, 16), whorl.positions(length))
    return torch.cat((out.flatten(), added.flatten())).detach()


def stop(event):
    if event["step"] > 3:
        raise InterruptedError


def main():
    assert whorl.__version__ == "0.1.0"
    encodings = built()
    configs = {name: encoding.config.to_dict() for name, encoding in encodings.items()}
    (HOME / "configs.json").write_text(json.dumps(configs, indent=1) + "\n")
    torch.save({name: encoding.state_dict() for name, encoding in encodings.items()}, HOME / "parameters.pt")
    torch.save(encodings, HOME / "modules.pt")
    torch.save({name: attended(encoding) for name, encoding in encodings.items()}, HOME / "outputs.pt")

    TEXT.parent.mkdir(exist_ok=True)
    TEXT.write_text("".join(f"line {i}: {i * i} is {i} times {i}.\n" for i in range(400)))
    out = HOME / "lab"
    shutil.rmtree(out, ignore_errors=True)
    finished, begun = plan(["rope", "t5"], out=out, **RUN)
    whorl.lab.run_one(finished, out / "runs" / finished.id)
    logits = whorl.lab.load(out / "runs" / finished.id).model(torch.arange(12)[None] + 97).detach()
    whole = whorl.lab.run_one(begun, HOME / "undisturbed")
    shutil.rmtree(HOME / "undisturbed")
    with contextlib.suppress(InterruptedError):
        whorl.lab.run_one(begun, out / "runs" / begun.id, tell=stop, save_seconds=0.0)
    known = {"finished": finished.id, "begun": begun.id, "final_train_loss": whole["final_train_loss"]}
    (HOME / "runs.json").write_text(json.dumps(known, indent=1) + "\n")
    torch.save(logits, HOME / "logits.pt")


if __name__ == "__main__":
    main()
