"""Claims about KV caches: which keys may be kept."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl import DynamicNtk, KVCache, Rope, attention, registry
from whorl.claims import flags
from whorl.claims.ledger import About, Both, Finding, close, decide, shared
from whorl.claims.probes import build, largest, normal, refusal

COUNT, DIM = 256, 16
about_rope = About("rope")


@shared
def tokens() -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of 256 tokens, two heads of 16 dimensions."""
    q, k, v = normal(3, 1, 2, COUNT, DIM, seed=20)
    return q, k, v


@About().fails(
    "note.relative-no-cache",
    "Relative encodings do not suit a KV cache.",
    "相对位置编码不适合 KV 缓存。",
    says="study notes",
    how="Every registered encoding that is relative: twelve tokens fed to KVCache in pieces of 5, 1, 1, 5 against a "
    "full pass, to 1e-6. It would be so if one of them failed.",
    how_zh="每个已注册的相对编码：十二个词按 5、1、1、5 分批送入 KVCache，与整段计算比较，容差 1e-6。只要有一种不符就算"
    "成立。",
)
def relative_no_cache() -> Finding:
    relative = [name for name in registry.names() if build(name).claims.relative]
    good = [name for name in relative if flags.cached(build(name)).verdict.kind == "holds within"]
    raw = [name for name in good if build(name).key_policy == "raw"]
    numbers = {"relative encodings": len(relative), "that decode as they prefill": len(good), "of raw keys": len(raw)}
    text = f"all {len(good)} relative encodings decode as they prefill; {', '.join(raw)} keep keys as they were"
    but = Both(text, f"{len(good)} 种相对编码逐步解码都与整段计算一致；{', '.join(raw)} 保留未经变换的键")
    return decide(len(good) < len(relative), numbers, but)


@about_rope.fails(
    "cache.rotated-keys-stay",
    "Keys rotated once may stay in the cache, whatever the length that is served.",
    "键旋转一次后即可一直留在缓存中，与所服务的长度无关。",
    says="transformers 4.31, LlamaDynamicNTKScalingRotaryEmbedding, by caching rotated keys",
    how="Keys of 8 tokens of 16 dimensions up to position 255 rotated by dynamic NTK, trained on 256, at length 256 "
    "and at 512: equal to 1e-9 would do; and whether KVCache takes such keys.",
    how_zh="位置 255 以内的 8 个 16 维的键，用训练长度 256 的动态 NTK 在长度 256 与 512 下旋转：相差不到 1e-9 才"
    "算可以；并看 KVCache 是否接受。",
)
def rotated_keys_stay() -> Finding:
    rope = Rope(head_dim=DIM, scaling=DynamicNtk(factor=2.0, original_length=256))
    k, ids = normal(1, 1, 8, DIM), torch.arange(248, 256)
    apart = largest(rope.rotate(k, ids, 256) - rope.rotate(k, ids, 512))
    refused = bool(refusal(lambda: KVCache(encoding=rope, policy="transformed")))
    numbers = {"largest difference": apart, "whorl refuses to keep them": refused}
    text = f"a key near position 256 differs by {apart:.2f} between two lengths"
    but = Both(text, f"位置 256 附近的键在两种长度下相差 {apart:.2f}")
    return decide(apart < 1e-9 and not refused, numbers, but)


@about_rope.holds_within(
    "cache.growing-length",
    "With raw keys each step of dynamic NTK equals a full pass at that step's length.",
    "缓存未旋转的键时，动态 NTK 的每一步都等于该长度下的整段计算。",
    says="whorl 0.2, docs/where-it-lives.md",
    how="Six steps at lengths 250, 253 … 265 of dynamic NTK with factor 4, trained on 256; 2 heads of 16.",
    how_zh="因子 4、训练长度 256 的动态 NTK，在长度 250、253 … 265 走六步；2 个 16 维的头。",
)
def growing_length() -> Finding:
    rope = Rope(head_dim=DIM, scaling=DynamicNtk(factor=4.0, original_length=256))
    given, cache, apart = [x[:, :, :6] for x in tokens()], KVCache(encoding=rope), []
    for i in range(6):
        length = 250 + 3 * i
        step = cache.attend(*(x[:, :, i : i + 1] for x in given), length=length)
        whole = attention(*(x[:, :, : i + 1] for x in given), encoding=rope, length=length)
        apart.append(step - whole[:, :, -1:])
    return close(apart, 1e-9)
