"""Generation as a user calls it: a Llama's prompt and the tokens after it, beside transformers where it is installed.

Both run the same weights. Times are those of the whole call, until the device is done with it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor

from whorl.benchmarks.judging import judged, not_judged, setting
from whorl.benchmarks.runner import Case, Check, Group
from whorl.errors import dtype_name
from whorl.models.decoder import Decoder

LIMIT = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}  # of logits, after all layers
FEW = 8  # tokens generated at each new prompt length
PROMPTS = 4096  # prompt lengths before the first is met again


def generation(
    *,
    device: str = "auto",
    dtype: str = "auto",
    batch: int = 1,
    prompt: int = 512,
    tokens: int = 128,
    prefill: int = 8192,
    layers: int = 8,
    width: int = 2048,
    heads: int = 16,
    kv_heads: int = 4,
    vocab: int = 32000,
) -> tuple[Group, ...]:
    """The groups to time: tokens after a prompt, a prompt of a length not met before, and a pass over a long prompt."""
    where, kind = setting("bench generation", device, dtype)
    theirs, ours = _models(where, kind, layers=layers, width=width, heads=heads, kv_heads=kv_heads, vocab=vocab)
    drawn = torch.randint(vocab, (batch, max(prompt + PROMPTS, prefill)), device=where)
    about = f"{layers} layers of {width}, {heads}/{kv_heads} heads, batch {batch}, {dtype_name(kind)}"

    def same_tokens() -> Check:
        given = drawn[:, :prompt]
        same = bool(torch.equal(ours.generate(given, tokens, graph=None), ours.generate(given, tokens, graph=False)))
        return Check(ok=same, text="the tokens of single steps" if same else "other tokens than single steps")

    def logits(model: Callable[[Tensor], Any]) -> Tensor:
        out = model(drawn[:, : min(prompt, 64)])
        return getattr(out, "logits", out)

    within = LIMIT[kind]
    like_theirs = not_judged if theirs is None else judged(lambda: logits(ours), lambda: logits(theirs), within)
    whole = [_timed("single steps", lambda: ours.generate(drawn[:, :prompt], tokens, graph=False), like_theirs)]
    if where == "cuda":
        whole.append(_timed("one graph", lambda: ours.generate(drawn[:, :prompt], tokens), same_tokens))
    unseen = count()
    ahead = [_timed("whorl", lambda: ours.generate(drawn[:, : prompt + 1 + next(unseen) % PROMPTS], FEW), like_theirs)]
    long = [_timed("whorl", lambda: ours(drawn[:, :prefill]), like_theirs)]
    if theirs is not None:
        theirs_unseen = count()
        whole.insert(0, _timed("transformers", lambda: theirs.generate(drawn[:, :prompt], **_greedy(tokens))))
        ahead.insert(
            0,
            _timed(
                "transformers",
                lambda: theirs.generate(drawn[:, : prompt + 1 + next(theirs_unseen) % PROMPTS], **_greedy(FEW)),
            ),
        )
        long.insert(0, _timed("transformers", lambda: theirs(drawn[:, :prefill])))
    named = {
        f"{prompt} + {tokens} tokens": whole,
        f"{FEW} tokens after a prompt of a length not met before": ahead,
        f"a pass over {prefill} tokens": long,
    }
    return tuple(
        Group(name=name, summary=about, cases=tuple(cases), device=where, host=True) for name, cases in named.items()
    )


def _models(where: str, kind: torch.dtype, **sizes: int) -> tuple[Any, Decoder]:
    """The same random Llama by transformers, None where it is not installed, and by us."""
    layers, width, heads, kv_heads, vocab = sizes.values()
    torch.manual_seed(0)
    if importlib.util.find_spec("transformers") is None:
        options: dict[str, Any] = {"norm": "rms", "activation": "swiglu", "bias": False, "tied": False}
        made = Decoder(vocab, layers, width, heads, "rope", kv_heads=kv_heads, length=8192, **options)
        return None, made.to(where, kind).eval()
    from transformers import LlamaConfig, LlamaForCausalLM

    from whorl.models.load import load_decoder

    config = LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=width * 11 // 4,
        vocab_size=vocab,
        max_position_embeddings=1 << 15,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.device(where):
        theirs: Any = LlamaForCausalLM(config)
    theirs = theirs.to(kind).eval()
    return theirs, load_decoder(theirs.state_dict(), config.to_dict()).to(where).eval()


def _greedy(tokens: int) -> dict[str, Any]:
    return {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}


def _timed(name: str, work: Callable[[], Any], check: Callable[[], Check] = not_judged) -> Case:
    """A case that waits for the device."""

    @torch.no_grad()
    def run() -> Any:
        made = work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return made

    return Case(name=name, run=run, check=torch.no_grad()(check), peer=name == "transformers")
