"""NoPE, no position encoding: the control that every other encoding is compared with.

Haviv, Ram, Press, Izsak, Levy 2022, "Transformer Language Models without Positional Encodings Still Learn Positional
Information"; Kazemnejad, Padhi, Natesan Ramamurthy, Das, Reddy 2023, "The Impact of Positional Encoding on Length
Generalization in Transformers".
    score = <q, k> / sqrt(d)
Position enters nowhere: without a mask attention is permutation-equivariant, and a causal mask is all that tells
the order. No parameters, no cost.
"""

from __future__ import annotations

from typing import ClassVar

from whorl.config import Config, config
from whorl.encodings.base import Claims, Encoding


@config
class NoPEConfig(Config):
    """Nothing to set."""

    name: ClassVar[str] = "none"


class NoPE(Encoding):
    """No position encoding: every hook gives back what it was given.

    >>> import torch, whorl
    >>> none = whorl.build("none")
    >>> none.enters(), none.score_bias(whorl.positions(4), whorl.positions(4))
    ((), None)
    """

    Config = NoPEConfig
    config: NoPEConfig
    claims = Claims(
        relative=True,  # content only, so equal at equal distance as well
        norm_preserving=True,  # queries and keys are left alone
        linear_attention=True,
        decays=False,
        extrapolates=False,  # degrades slowly past the trained length, and sooner than a window would
    )
