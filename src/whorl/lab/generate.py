"""Generation: text from a run that was trained on text, byte by byte or token by token."""

from __future__ import annotations

from pathlib import Path

import torch

from whorl.errors import WhorlError, invalid
from whorl.lab.evaluate import reach
from whorl.lab.load import LabRun, load
from whorl.lab.tokens import text_of, tokens_of
from whorl.position_ids import whole_number


def generate(
    run: str | Path | LabRun,
    prompt: str,
    *,
    count: int = 200,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
) -> str:
    """The prompt and ``count`` more bytes or tokens of text behind it: the likeliest ones, or drawn at a temperature.

    ``run`` is a run folder, or what ``whorl.lab.load`` returned. Bytes that are no UTF-8 become U+FFFD. The same seed
    draws the same text.

    >>> import whorl.lab
    >>> from whorl.lab.load import make_model
    >>> config = whorl.lab.RunConfig(encoding={"name": "rope"}, layers=1, width=16, heads=2)
    >>> untrained = whorl.lab.LabRun(make_model(config).eval(), config, None)
    >>> len(generate(untrained, "def ", count=3).encode(errors="replace")) >= 7
    True
    """
    found = run if isinstance(run, LabRun) else load(run)
    config = found.config
    if not config.text:
        raise WhorlError(f"generate: a run on {config.corpus} has no text to go on with. Give a run on text.")
    count = whole_number("generate", "count", count)
    seed = whole_number("generate", "seed", seed)
    given = tokens_of(config, prompt)
    if not given:
        raise invalid("generate", "prompt", "at least one letter", prompt, "Begin the text that is to go on.")
    most = reach(found.model.plan[0])
    if len(given) + count - 1 > most:  # the last byte is not read again
        raise invalid(
            "generate",
            "prompt and count",
            f"at most {int(most) + 1} {config.unit} together, the positions that were learned and one more",
            len(given) + count,
        )
    generator = torch.Generator(config.device).manual_seed(seed) if temperature else None
    tokens = torch.tensor([given], device=config.device)
    out = found.model.generate(tokens, count, temperature=temperature, top_k=top_k, generator=generator)
    return text_of(config, out[0].tolist())
