"""Statements of the notes about attention and about models in use."""

from __future__ import annotations

import torch

from whorl import T5, Alibi, Learned, Rope, Sinusoidal, attention
from whorl.claims import evidence
from whorl.claims.biases.masks import shuffled
from whorl.claims.ledger import BETWEEN, About, Both, Finding, decide, depends, inconclusive, needs_training
from whorl.claims.probes import generator, largest, normal, turned
from whorl.claims.rotation.turning import plain
from whorl.claims.statements.frequencies import NOTES
from whorl.dialects.detect import read_config
from whorl.dialects.families import ALIBI, UNROTATED

about_rope = About("rope")


@About("t5", says=NOTES).fails(
    "note.t5-stores-length",
    "T5 stores O(L) biases.",
    "T5 要存储 O(L) 个偏置。",
    how="What T5's bias holds a head, parameters and buffers, with no length and with 16,384; and distinct biases of "
    "64, 1,024 and 16,384 keys: more than 1,000 of the last would grow with the length. Of 1,024 and of 16,384 keys "
    "there are 32, as many as parameters.",
    how_zh="T5 偏置每个头所存的数（参数与缓冲区），不给长度与长度 16384 时；以及 64、1024、16384 个键时不同偏置的个数："
    "最后一个超过 1000 才算随长度增长。1024 与 16384 个键时须为 32 个，与参数一样多。",
)
def t5_stores_length() -> Finding:
    t5, numbers = T5(heads=8), {}
    for name, one in (("numbers a head", t5), ("numbers a head, length 16,384", T5(heads=8, length=16_384))):
        numbers[name] = sum(x.numel() for x in (*one.parameters(), *one.buffers())) / 8
    for keys in (64, 1024, 16_384):
        numbers[f"biases, {keys:,} keys"] = len(t5.score_bias(torch.tensor([keys - 1]), torch.arange(keys))[0].unique())
    text = f"{numbers['numbers a head']:.0f} numbers a head, whatever the length"
    but = Both(text, f"每个头 {numbers['numbers a head']:.0f} 个数，与长度无关")
    stored, with_length, _, near, far = numbers.values()
    return decide(far > 1000, numbers, but, instead=stored == with_length == near == far == 32)


@About("sinusoidal", "learned", says=NOTES).fails(
    "note.bert-sinusoidal",
    "BERT uses sinusoidal positions.",
    "BERT 使用正弦位置编码。",
    how="BERT-base uncased has 109,482,240 parameters without the heads of its pre-training (transformers' BertModel); "
    "its sizes make so many only with a learned table of 512 x 768. And whorl must read its family so.",
    how_zh="BERT-base（uncased）不计预训练的输出头有 109,482,240 个参数（transformers 的 BertModel）；按其尺寸，只有加"
    "上 512 × 768 的可学习表才是这个数。且 whorl 须如此读取该系列。",
)
def bert_sinusoidal() -> Finding:
    width, layers, inner, vocab = 768, 12, 3072, 30_522
    norm, dense = 2 * width, width * width + width
    layer = 4 * dense + norm + (width * inner + inner) + (inner * width + width) + norm
    return _counted("bert", 109_482_240, (vocab + 2) * width + norm + layers * layer + dense, width, 512)


@About("sinusoidal", "learned", says=NOTES).fails(
    "note.gpt2-sinusoidal",
    "GPT-2 is an example of sinusoidal positions.",
    "GPT-2 是使用正弦位置编码的例子。",
    how="GPT-2 small has 124,439,808 parameters; its sizes make so many only with a learned table of 1,024 x 768. "
    "And whorl must read its family so.",
    how_zh="GPT-2 small 有 124,439,808 个参数；按其尺寸，只有加上 1024 × 768 的可学习表才是这个数。且 whorl "
    "须如此读取该系列。",
)
def gpt2_sinusoidal() -> Finding:
    width, layers, vocab = 768, 12, 50_257
    layer = 12 * width * width + 13 * width  # projections of attention and of a feed-forward 4 times as wide, and norms
    return _counted("gpt2", 124_439_808, vocab * width + layers * layer + 2 * width, width, 1024)


def _counted(family: str, published: int, rest: int, width: int, length: int) -> Finding:
    """Whether a model has as many parameters as were published with sinusoids, or with a learned table."""
    encodings = Learned(width=width, length=length), Sinusoidal(width=width)
    table, waves = (rest + sum(p.numel() for p in encoding.parameters()) for encoding in encodings)
    sizes = {
        "hidden_size": width,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "max_position_embeddings": length,
    }
    sizes |= {"n_embd": width, "n_head": 12, "n_layer": 12, "n_positions": length}  # as GPT-2 calls them
    (read,) = read_config({"model_type": family, **sizes}).layers[0].encodings
    sizes_read = [value.value for value in read.settings.values()]
    numbers = {"of the model, without heads": published, "with a learned table": table, "with sinusoids": waves}
    numbers |= {"whorl reads a learned table": float(read.name == "learned")}
    text = Both(
        f"with sinusoids it would have {waves:,} parameters; it has {table:,}, a learned row for each of {length} "
        "positions",
        f"若用正弦编码应有 {waves:,} 个参数；实际为 {table:,}，即 {length} 个位置各有一行可学习的向量",
    )
    so = read.name == "learned" and sizes_read == [width, length] and waves == rest and table == published
    return decide(waves == published or read.name == "sinusoidal", numbers, text, instead=so)


@About("alibi", "rope", says=NOTES).fails(
    "note.moss-alibi",
    "MOSS uses ALiBi.",
    "MOSS 使用 ALiBi。",
    how="The published settings of moss-moon-003, read as those of CodeGen, which MOSS's code follows: it would be so "
    "if they turned no dimension, or if whorl took MOSS for a family with ALiBi. As in CodeGen they turn 64 of 256, "
    "neighbours together.",
    how_zh="把 moss-moon-003 公布的配置按 CodeGen 读取（MOSS 的代码沿用 CodeGen）：若不旋转任何维度，或 whorl 把 MOSS "
    "归入使用 ALiBi 的系列，才算成立。须与 CodeGen 一样旋转 256 维中的 64 维，相邻两维成对。",
)
def moss_alibi() -> Finding:
    sizes = {"n_embd": 6144, "n_head": 24, "n_layer": 34, "n_positions": 2048, "vocab_size": 107_008}
    rope = Rope.from_hf({"model_type": "codegen", "rotary_dim": 64, **sizes})
    numbers = {"dimensions turned": rope.config.rotary_dim, "dimensions of a head": rope.config.head_dim}
    text = Both(
        f"it rotates {rope.config.rotary_dim} of a head's {rope.config.head_dim} dimensions, as CodeGen does",
        f"它与 CodeGen 一样旋转每个头 {rope.config.head_dim} 维中的 {rope.config.rotary_dim} 维",
    )
    so = (rope.config.rotary_dim, rope.config.head_dim, rope.layout) == (64, 256, "interleaved")
    return decide(rope.config.rotary_dim == 0 or UNROTATED.get("moss") == ALIBI, numbers, text, instead=so)


@about_rope.fails(
    "note.llama-simplified",
    "LLaMA uses a simplified RoPE.",
    "LLaMA 使用的是简化版 RoPE。",
    says=NOTES,
    how="Its complex products, as released but in float64, against RoFormer's rotation of 64 vectors of 128 dimensions "
    "at positions up to 1,953, to 1e-6.",
    how_zh="64 个 128 维向量、位置直到 1953：其发布代码的复数乘积（改用 float64）与 RoFormer 的旋转比较，容差 1e-6。",
)
def llama_simplified() -> Finding:
    x, ids = normal(1, 1, 64, 128), torch.arange(64) * 31
    as_released = turned(x, torch.outer(ids.double(), 1.0 / 10_000.0 ** (torch.arange(0, 128, 2).double() / 128)))
    worst = largest(as_released - plain(128).rotate(x, ids))
    text = f"multiplying by e^(i m w) is the same rotation, to {worst:.0e}"
    but = Both(text, f"乘以 e^(i m w) 就是同一个旋转，只差 {worst:.0e}")
    return decide(worst > 1e-6, {"largest difference": worst}, but)


@About("none", says=NOTES).fails(
    "note.permutation-invariant",
    "Self-attention is permutation-invariant.",
    "自注意力具有置换不变性。",
    how="Outputs of 16 tokens, 2 heads of 8, against those of the same tokens shuffled, to 1e-9. Shuffled "
    "back they are the same to 1e-9, and under a causal mask off by more than 0.1.",
    how_zh="16 个词、2 个 8 维的头的输出与打乱后的输出直接比较（容差 1e-9）。按次序还原后须相同（容差 1e-9），"
    "在因果掩码下则须相差超过 0.1。",
)
def permutation_invariant() -> Finding:
    q, k, v = normal(3, 1, 2, 16, 8)
    order = torch.randperm(16, generator=generator(3))
    moved = largest(attention(q, k, v, causal=False) - attention(*(x[:, :, order] for x in (q, k, v)), causal=False))
    numbers = {
        "outputs against those of shuffled tokens": moved,
        "the same, shuffled back": largest(shuffled(causal=False)),
        "shuffled back, under a causal mask": largest(shuffled(causal=True)),
    }
    text = "outputs move with their tokens: it is equivariant, and under a causal mask not even that"
    but = Both(text, "输出随词一起移动：是等变的；在因果掩码下连等变也不成立")
    _, without, causal = numbers.values()
    return decide(moved < 1e-9, numbers, but, instead=without < 1e-9 and causal > 0.1)


@About("alibi", "rope", says=NOTES).depends(
    "note.alibi-faster",
    "ALiBi is lighter and faster than RoPE.",
    "ALiBi 比 RoPE 更轻、更快。",
    how="Parameters of both, which are none; time, and memory beyond the inputs, of one causal forward call of whorl's "
    "attention in bfloat16 on an H200, batch 1, random data, from committed benchmarks: 2,048 tokens of 8 heads of 64, "
    "4,096 and 16,384 tokens of 16 heads of 128. ALiBi's kernel leaves out keys too far to weigh anything; beside it, "
    "at 16,384 tokens, ALiBi folded into further dimensions of q and k, which leaves none out. It would have to need "
    "less of both in all four.",
    how_zh="两者的参数个数，须都为零；以及已提交的基准中，H200 上 whorl 的一次因果前向注意力调用（bfloat16、批量 1、随"
    "机数据）的时间与输入之外的内存：2048 个词、8 个 64 维的头，4096 与 16384 个词、16 个 128 维的头。ALiBi 的内核略去"
    "远到没有权重的键；另有 16384 个词时把 ALiBi 折叠进 q、k 附加维度的写法，不略去任何键。须在四种情形下两者都更少才算"
    "成立。",
    trained=True,
)
def alibi_faster() -> Finding:
    found = {length: evidence.benchmark(path) for length, path in evidence.BENCHMARKS.items()}
    without = evidence.benchmark(evidence.FOLDED)
    if not all(found.values()) or not without:
        sizes = "--set length=16384 --set heads=16 --set head_dim=128"
        return needs_training(f"whorl bench attention {sizes}, and at the other sizes; whorl bench bias {sizes}")
    parameters = [sum(p.numel() for p in one.parameters()) for one in (Rope(head_dim=64), Alibi(heads=8))]
    memory, time = (
        {length: rows["alibi"][key] / rows["rope"][key] for length, rows in found.items()}
        for key in ("peak_memory", "seconds")
    )
    rope, folded = found[16_384]["rope"], without["whorl, folded"]
    folded_memory, folded_time = folded["peak_memory"] / rope["peak_memory"], folded["seconds"] / rope["seconds"]
    numbers = {f"memory of ALiBi over RoPE, {length:,} tokens": ratio for length, ratio in memory.items()}
    numbers |= {f"time of ALiBi over RoPE, {length:,} tokens": ratio for length, ratio in time.items()}
    numbers |= {"memory, folded, 16,384 tokens": folded_memory, "time, folded, 16,384 tokens": folded_time}
    numbers |= {"parameters of RoPE": parameters[0], "parameters of ALiBi": parameters[1]}
    said = ", ".join(f"{ratio:.2f} at {length:,} tokens" for length, ratio in time.items())
    said_zh = "、".join(f"{length} 个词 {ratio:.2f}" for length, ratio in time.items())
    text = Both(
        f"with the kernel that leaves far keys out it needs about {max(memory.values()):.2f} of the memory, and of "
        f"the time {said}; folded, which leaves none out, {folded_memory:.2f} of the memory and {folded_time:.2f} of "
        "the time at 16,384; neither has parameters",
        f"用略去远处键的内核，内存约为 RoPE 的 {max(memory.values()):.2f} 倍，时间的倍数为：{said_zh}；不略去的折叠"
        f"写法在 16384 个词时，内存为 {folded_memory:.2f} 倍，时间为 {folded_time:.2f} 倍；两者都没有参数",
    )
    *_, longest = time.values()
    on = Both("the size of the call and the kernel", "调用的规模与内核")
    lighter = max(memory.values()) < 1 and not any(parameters)
    return depends(
        on,
        lighter and longest < 1,
        lighter and max(*time.values(), folded_time, folded_memory) < 1,
        numbers,
        text,
        BETWEEN.join((*evidence.BENCHMARKS.values(), evidence.FOLDED)),
    )


@About("rope", "sinusoidal", "learned").inconclusive(
    "note.ablation-tables",
    "At the trained length the base of RoPE, a norm of queries and keys, and the encoding of a classifier of short "
    "texts change the result, as the quoted tables show.",
    "在训练长度处，RoPE 的底数、查询与键的归一化、短文本分类所用的编码都会改变结果，正如所引用的表格所示。",
    says="study notes, tables quoted without code",
    how="Small ablations of the lab, three seeds: differences of the loss from the usual setting, on the same last "
    "tokens at the trained length, and of the accuracies of learned and sinusoidal codes from RoPE's; seed by seed, "
    "with Student's 95 % intervals, each by itself. Each table must have a setting whose interval leaves zero out; "
    f"one of losses whose intervals all lie within {evidence.TIE:g} bits per byte of zero would show the contrary. "
    "The loss of all tokens is counted beside it.",
    how_zh="实验室的小型消融、三个种子：训练长度处相同末尾词上的损失与默认设置之差，以及可学习编码、正弦编码的准确率与 "
    "RoPE 之差，逐种子配对，取 Student 95% 区间，各自判定。每张表都须有区间不含零的设置；若某张损失表的区间全在零的 "
    f"{evidence.TIE:g} 比特每字节以内，则显示相反。并列出全部词上的损失。",
    trained=True,
)
def ablation_tables() -> Finding:
    tables = {name: evidence.differences(name) for name in ("base", "norm")}
    tables["classify"] = evidence.accuracy_differences("rope", ("learned", "sinusoidal"))
    if not all(tables.values()):
        return needs_training(
            "whorl lab ablate base --seeds 3 --steps 300, then norm, and whorl lab classify --seeds 3 --steps 100"
        )
    apart = {name: [one for one in found if one.apart] for name, found in tables.items()}
    numbers = {f"{name}: settings": len(found) for name, found in tables.items()}
    numbers |= {f"{name}: whose interval leaves zero out": len(found) for name, found in apart.items()}
    said = "; ".join(f"{name} {len(apart[name])} of {len(found)}" for name, found in tables.items())
    every = {name: sum(one.apart for one in evidence.differences(name, "non_overlapping")) for name in ("base", "norm")}
    numbers |= {f"{name}: those of the loss of all tokens": count for name, count in every.items()}
    of_all = "; ".join(f"{name} {count} of {len(tables[name])}" for name, count in every.items())
    text = Both(
        f"settings that differ beyond their interval, losses of the same last tokens: {said}; of all tokens: {of_all}",
        f"差异超出区间的设置（损失取相同的末尾词）：{said}；取全部词：{of_all}".replace(" of ", "/"),
    )
    tied = [name for name in ("base", "norm") if all(one.tied for one in tables[name])]
    if not tied and not all(apart.values()):
        return inconclusive(numbers, text, "experiments/ablations.json")
    return decide(not tied, numbers, text, "experiments/ablations.json")
