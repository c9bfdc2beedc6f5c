"""Claims about KV caches: which keys may be kept."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl import DynamicNtk, KVCache, Rope, attention, registry
from whorl.claims import flags
from whorl.claims.ledger import About, Both, Finding, decide, shared, within
from whorl.claims.probes import build, doubles, generator, ladder, largest, normal, refusal
from whorl.models.decoder import Decoder

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
    how="Every registered encoding that is relative and does anything: twelve tokens, near and far apart, fed to "
    "KVCache in pieces of 5, 1, 1, 5 against a full pass, to 1e-6. It would be so if one of them failed. Some must "
    "keep keys as they were before they are placed.",
    how_zh="每个已注册且有作用的相对编码：十二个词（远近都有）按 5、1、1、5 分批送入 KVCache，与整段计算比较，容差 1e-6"
    "。只要有一种不符就算成立。其中须有保留放置前的键的。",
)
def relative_no_cache() -> Finding:
    relative = [name for name in registry.names() if build(name).claims.relative and build(name).enters()]
    good = [name for name in relative if flags.cached(build(name)).verdict.kind == "holds within"]
    raw = [name for name in good if KVCache(encoding=build(name)).policy == "raw"]
    numbers = {"relative encodings": len(relative), "that decode as they prefill": len(good)}
    numbers["that place keys anew at each step"] = len(raw)
    text = f"all {len(good)} relative encodings decode as they prefill; {', '.join(raw)} place keys anew at each step"
    but = Both(text, f"{len(good)} 种相对编码逐步解码都与整段计算一致；{', '.join(raw)} 每一步重新放置键")
    return decide(len(good) < len(relative), numbers, but, instead=len(raw) > 0)


@about_rope.fails(
    "cache.rotated-keys-stay",
    "With dynamic NTK, keys rotated once are those that any later length needs, so they may stay in the cache.",
    "使用动态 NTK 时，旋转一次的键就是以后任何长度所需的键，因此可以一直留在缓存中。",
    says="transformers 4.31, LlamaDynamicNTKScalingRotaryEmbedding, by caching rotated keys",
    how="Keys of 8 tokens of 16 dimensions at positions 248 … 255 rotated by dynamic NTK with factors 1, 2 and 8, "
    "trained on 256, at length 256 and at 512: it would be so if with one factor they were equal to 1e-9 and KVCache "
    "took all such keys. They differ by more than 0.01, without scaling by less than 1e-9; all are refused; and the "
    "frequencies are those of the base times (factor + 1)^(16/14) at 512 and of the base itself at 256, to 1e-9.",
    how_zh="位置 248 … 255 处的 8 个 16 维的键，用训练长度 256、因子 1、2、8 的动态 NTK 在长度 256 与 512 下旋转：若有"
    "一种相差不到 1e-9 且 KVCache 接受所有这样的键，才算可以。它们须相差超过 0.01，不缩放时不到 1e-9；KVCache 须全部拒"
    "绝；频率在 512 时须为底数乘以 (因子 + 1)^(16/14) 的，在 256 时须为底数本身的（容差 1e-9）。",
)
def rotated_keys_stay() -> Finding:
    k, ids = normal(1, 1, 8, DIM), torch.arange(248, 256)
    factors = (1, 2, 8)
    scaled = [Rope(head_dim=DIM, scaling=DynamicNtk(factor=float(f), original_length=256)) for f in factors]
    off = largest(
        rope.frequencies(length) / ladder(DIM, 10_000.0 * stretch ** (DIM / (DIM - 2))) - 1
        for f, rope in zip(factors, scaled, strict=True)
        for length, stretch in ((256, 1), (512, f + 1))
    )
    *apart, plain = (
        largest(rope.rotate(k, ids, 256) - rope.rotate(k, ids, 512)) for rope in (*scaled, Rope(head_dim=DIM))
    )
    least = float(doubles(apart).min())  # NaN where one is, which min would pass by
    refused = sum(bool(refusal(lambda rope=rope: KVCache(encoding=rope, policy="transformed"))) for rope in scaled)
    numbers = {f"largest difference, factor {f}": each for f, each in zip(factors, apart, strict=True)}
    numbers |= {"largest difference, no scaling": plain, "factors that whorl refuses, of 3": refused}
    numbers["frequencies off the formula by"] = off
    but = Both(
        f"with each factor the largest difference of these keys at the two lengths is {least:.2f} or more; without "
        f"scaling {plain:.3g}",
        f"各因子下，这些键在两种长度下的最大差都不小于 {least:.2f}，不缩放时为 {plain:.3g}",
    )
    so = least > 0.01 and plain < 1e-9 and refused == 3 and off < 1e-9
    return decide(least < 1e-9 and not refused, numbers, but, instead=so)


@about_rope.holds_within(
    "cache.growing-length",
    "With raw keys each step of a layer with dynamic NTK equals a full pass at that step's length over the same "
    "queries, keys and values. Where the frequencies change from step to step, as past the trained length with that of "
    "the text so far, these are the same in a model's first layer only: the others read what was made at shorter "
    "lengths.",
    "缓存未旋转的键时，一层的动态 NTK 的每一步都等于该长度下对同样的查询、键、值的整段计算。若频率逐步改变（例如越过训"
    "练长度、以当时的文本长度计算），模型中只有第一层的查询、键、值相同：其余各层读取的是在较短长度下算出的结果。",
    says="whorl 0.2, KVCache, of a step and a full pass at one length; of a model's layers this ledger",
    how="Dynamic NTK with factor 4, 2 heads of 16. Trained on 256: six steps at lengths 250, 253 … 265. Trained on "
    "64: 60 tokens at once, then 20 steps at the length of the text so far, which passes 64; and so the last logits of "
    "decoders of one layer and of two, which beyond 64 must differ by more than 0.01 with two.",
    how_zh="因子 4 的动态 NTK，2 个 16 维的头。训练长度 256：在长度 250、253 … 265 走六步。训练长度 64：先送入 60 个"
    "词，再以当时的文本长度走 20 步，越过 64；一层与两层的解码器的末位输出也如此，"
    "其中两层的越过 64 后须相差超过 0.01。",
)
def growing_length() -> Finding:
    numbers = {}
    for trained, lengths in ((256, {i: 250 + 3 * i for i in range(6)}), (64, {i: i + 1 for i in range(59, 80)})):
        rope = Rope(head_dim=DIM, scaling=DynamicNtk(factor=4.0, original_length=trained))
        cache, apart, at = KVCache(encoding=rope), [], 0
        for last, length in lengths.items():
            step = cache.attend(*(x[:, :, at : last + 1] for x in tokens()), length=length)
            whole = attention(*(x[:, :, : last + 1] for x in tokens()), encoding=rope, length=length)
            apart.append(step - whole[:, :, at:])
            at = last + 1
        numbers[f"largest difference, trained on {trained}"] = largest(apart)
    numbers["decoder of one layer"] = largest(torch.cat(_steps_off_full_passes(layers=1)))
    numbers["decoder of two layers, up to 64"], beyond = (largest(off) for off in _steps_off_full_passes(layers=2))
    shown = numbers | {"decoder of two layers, past 64": beyond}
    if not beyond > 0.01:
        text = f"past 64 a decoder of two layers differs by {beyond:.3g} only"
        return decide(False, shown, Both(text, f"越过 64 后，两层的解码器也只相差 {beyond:.3g}"))
    return within(largest(doubles(list(numbers.values()))), 1e-9, shown)


def _steps_off_full_passes(layers: int) -> tuple[Tensor, Tensor]:
    """The last logits of steps less those of full passes at the same length, up to a length of 64, and past it."""
    rope = Rope(head_dim=DIM, scaling=DynamicNtk(factor=4.0, original_length=64))
    model = Decoder(vocab=64, layers=layers, width=2 * DIM, heads=2, encoding=rope).double().eval()
    for weight in model.parameters():
        weight.mul_(8 if weight.ndim == 2 else 1)  # so that attention is not near equal weights
    text, caches, off, at = torch.randint(0, 64, (1, 80), generator=generator(4)), model.caches(), [], 0
    for length in range(60, 81):
        for cache in caches:
            cache.length = length
        step, whole = model.step(text[:, at:length], caches), model(text[:, :length], length=length)
        off.append(step[0, -1] - whole[0, -1])
        at = length
    return torch.stack(off[:5]), torch.stack(off[5:])
