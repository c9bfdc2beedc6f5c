"""Architectures of GGUF files: what llama.cpp fixes in its code for each and no file says.

Read in llama.cpp at b21e4de of 22 August 2026: ``llama_model_rope_type`` for the pairs, ``load_arch_hparams`` and the
graphs in ``src/models/`` for windows, layers without rotation and factors. The converter moves the rows of queries and
keys to fit the pairs, so that the layout here is that of the file, and may differ from the one of the same model in
transformers: Llama has ``half`` there and ``interleaved`` here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Pairs = Literal["interleaved", "half", "mrope", "imrope"]
ROTATION: Mapping[str, str] = {"mrope": "half", "imrope": "half", "half": "half", "interleaved": "interleaved"}


@dataclass(frozen=True, kw_only=True)
class Sliding:
    """Layers that see a window, in an architecture whose layers differ.

    period      one layer in so many sees everything, the last of them unless ``full_first``; 0 where the file lists it
    size        the window where the file names none; None for no window then
    fixed       whether that size counts whatever the file names
    own_base    whether these layers have base 10,000 where the file names none for them, and not the base of the others
    scaled      whether the scaling of the other layers is theirs too
    kind        "sliding", "symmetric" (half of the window on each side) or "chunked"
    """

    period: int
    size: int | None = None
    fixed: bool = False
    full_first: bool = False
    own_base: bool = False
    scaled: bool = True
    kind: Literal["sliding", "symmetric", "chunked"] = "sliding"


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What llama.cpp does with positions in one architecture.

    pairs           which two dimensions make a pair; "mrope" and "imrope" have sections, chunked and interleaved
    instead         what it has in place of a rotation: "none", "alibi", "learned", "t5", "no attention"
    sliding         its layers with a window
    still           which layers do not rotate: "", "full" (those that see everything), "fourth", "fourth from 0"
    full_every      one layer in so many has attention, the others a recurrence, where the file does not list them
    optional        whether ``rope.scaling.finetuned``, where it is false, means that no layer rotates (Granite)
    reads           keys of YaRN that are read: "betas", "extrapolation", "log"
    log_unit        what a log multiplier of 1 is written as
    scales_softmax  whether the temperature of YaRN multiplies the softmax scale as well
    softcap         the cap on scores where the file names none
    temperature     what makes queries longer with their position: "", "file" (``attention.temperature_scale``) or
                    "still" (Llama 4's, in layers that do not rotate)
    refusal         why nothing can be said of it
    """

    pairs: Pairs = "half"
    instead: str = ""
    sliding: Sliding | None = None
    still: Literal["", "full", "fourth", "fourth from 0"] = ""
    full_every: int = 0
    optional: bool = False
    reads: tuple[str, ...] = ()
    log_unit: float = 1.0
    scales_softmax: bool = False
    softcap: float | None = None
    temperature: Literal["", "file", "still"] = ""
    refusal: str = ""


def architecture_of(name: str, layers: int | None) -> Architecture | None:
    """The row of an architecture, None for one that llama.cpp did not have when it was read."""
    return BY_LAYERS.get((name, layers)) or ARCHITECTURES.get(name)


_INTERLEAVED = Architecture(pairs="interleaved")
_HALF = Architecture()
_GRANITE = Architecture(pairs="interleaved", optional=True)
_LATENT = Architecture(pairs="interleaved", scales_softmax=True, reads=("log",), log_unit=0.1, temperature="file")
_HYBRID = Architecture(full_every=4)

ARCHITECTURES: dict[str, Architecture] = {
    **dict.fromkeys(
        (
            *("llama", "llada", "deci", "internlm2", "minicpm", "xverse", "command-r", "olmo", "arctic", "deepseek"),
            *("plm", "chatglm", "chameleon", "bailingmoe", "neo-bert", "arcee", "ernie4_5", "ernie4_5-moe"),
            *("eagle3", "llama-embed", "maincoder", "nanbeige", "baichuan"),
        ),
        _INTERLEAVED,
    ),
    **dict.fromkeys(
        (
            *("falcon", "falcon-h1", "dbrx", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "eurobert", "stablelm"),
            *("bitnet", "qwen", "qwen2", "dream", "qwen2moe", "qwen3", "qwen3moe", "llada-moe", "rnd1", "olmoe"),
            *("phi2", "phi3", "phimoe", "plamo", "plamo2", "gemma", "starcoder2", "openelm", "gptneox", "codeshell"),
            *("orion", "nemotron", "exaone", "minicpm3", "bailingmoe2", "dots1", "hunyuan-moe", "hunyuan-dense"),
            *("jais2", "hy_v3", "lfm2moe", "seed_oss", "grovemoe", "apertus", "minimax-m2", "cogvlm", "pangu-embedded"),
            *("talkie", "glm4moe", "exaone4", "lfm2"),
        ),
        _HALF,
    ),
    **dict.fromkeys(("granite", "granitemoe", "granitehybrid", "graniteswitch"), _GRANITE),
    **dict.fromkeys(("deepseek2", "deepseek32", "mistral4"), _LATENT),
    "glm-dsa": replace(_LATENT, reads=()),
    "glm4": _INTERLEAVED,
    "mistral3": replace(_INTERLEAVED, reads=("betas", "log"), temperature="file"),
    "grok": replace(_HALF, reads=("betas", "extrapolation"), softcap=30.0),
    **dict.fromkeys(("qwen2vl", "paddleocr"), Architecture(pairs="mrope")),
    **dict.fromkeys(("qwen3vl", "qwen3vlmoe", "qwen3tts"), Architecture(pairs="imrope")),
    **dict.fromkeys(("qwen35", "qwen35moe"), Architecture(pairs="imrope", full_every=4)),
    "qwen3next": _HYBRID,
    "minimax-01": replace(_HYBRID, full_every=8),
    # --- layers that see a window beside layers that see everything
    "afmoe": Architecture(sliding=Sliding(period=4), still="fourth"),
    "cohere2": Architecture(pairs="interleaved", sliding=Sliding(period=4), still="full"),
    "exaone-moe": Architecture(sliding=Sliding(period=4, size=128), still="full"),
    "gemma-embedding": Architecture(sliding=Sliding(period=6, own_base=True, scaled=False, kind="symmetric")),
    "gemma2": Architecture(sliding=Sliding(period=2, size=4096), softcap=50.0),
    "gemma3": Architecture(sliding=Sliding(period=6, own_base=True, scaled=False)),
    "gemma3n": Architecture(sliding=Sliding(period=5, own_base=True, scaled=False)),
    "gemma4": Architecture(sliding=Sliding(period=0, own_base=True, scaled=False)),
    "gpt-oss": Architecture(sliding=Sliding(period=2)),
    "laguna": Architecture(sliding=Sliding(period=4, full_first=True, scaled=False)),
    "llama4": Architecture(
        pairs="interleaved",
        sliding=Sliding(period=4, size=8192, fixed=True, kind="chunked"),
        still="fourth",
        temperature="still",
    ),
    "mellum": Architecture(sliding=Sliding(period=4)),
    "mimo2": Architecture(sliding=Sliding(period=0, own_base=True, scaled=False)),
    "modern-bert": Architecture(
        sliding=Sliding(period=3, full_first=True, own_base=True, scaled=False, kind="symmetric")
    ),
    "muse-glimmer": Architecture(pairs="interleaved", sliding=Sliding(period=4, scaled=False), still="full"),
    "olmo2": Architecture(sliding=Sliding(period=4, scaled=False)),
    "plamo3": Architecture(sliding=Sliding(period=8, own_base=True, scaled=False)),
    "smallthinker": Architecture(
        sliding=Sliding(period=4, size=4096, fixed=True, full_first=True), still="fourth from 0"
    ),
    "smollm3": Architecture(pairs="interleaved", still="fourth"),
    # --- no rotation
    **dict.fromkeys(("bloom", "refact", "jina-bert-v2", "mpt", "jais"), Architecture(instead="alibi")),
    **dict.fromkeys(("gpt2", "starcoder", "bert"), Architecture(instead="learned")),
    **dict.fromkeys(("t5", "t5encoder"), Architecture(instead="t5")),
    **dict.fromkeys(("jamba", "nemotron_h", "nemotron_h_moe", "kimi-linear"), Architecture(instead="none")),
    **dict.fromkeys(
        ("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"), Architecture(instead="no attention")
    ),
    # --- what has no reading yet
    **dict.fromkeys(("clip", "wavtokenizer-dec"), Architecture(refusal="it is no language model")),
    "gptj": Architecture(refusal="llama.cpp has the name and no code for it"),
    "deepseek4": Architecture(refusal="its layers have compressed keys with a base of their own. Pass config.json"),
    "hunyuan_vl": Architecture(refusal="its sections split the two dimensions of a pair. Pass config.json"),
    **dict.fromkeys(
        (
            *(
                "bailingmoe3",
                "cohere2moe",
                "deepseek2-ocr",
                "dflash",
                "dots3note",
                "gemma4-assistant",
                "granite_swa",
                "kimi-k3",
            ),
            *("minimax-m3", "pockettts", "step35"),
        ),
        Architecture(refusal="what its layers do with positions has not been read yet. Pass config.json"),
    ),
}

# llama.cpp tells these models from their sisters by the number of their layers.
BY_LAYERS: dict[tuple[str, int | None], Architecture] = {
    ("baichuan", 40): Architecture(instead="alibi"),
    ("exaone4", 64): Architecture(sliding=Sliding(period=4, size=4096), still="full"),
}
