"""Claims about kernels of the distance: KERPLE, FIRE, Sandwich."""

from __future__ import annotations

import math

import torch

from whorl.claims.biases.alibi import bias
from whorl.claims.ledger import About, Finding, all_within, decide, depends, within
from whorl.claims.probes import doubles, largest, normal
from whorl.encodings.alibi import Alibi
from whorl.encodings.fire import Fire, progress
from whorl.encodings.kerple import Kerple
from whorl.encodings.sandwich import Sandwich

about_fire = About("fire", rows=("N3",))


@About("kerple", rows=("N8",)).holds(
    "kerple.alibi",
    "KERPLE's power kernel with p = 1 is ALiBi.",
    "p = 1 的 KERPLE 幂核就是 ALiBi。",
    says="Chi et al. 2022, KERPLE; N8",
    how="Biases with p = 1 and a = ALiBi's slopes at distances 0 … 1,000.",
)
def kerple_alibi() -> Finding:
    kerple, alibi, distances = Kerple(heads=8, variant="power"), Alibi(heads=8), torch.arange(1001)
    kerple.p.fill_(1.0)
    kerple.a.copy_(alibi.slopes().clamp(min=0.01))
    heads = range(6)  # slopes below 0.01 are held at 0.01
    good = sum(torch.equal(bias(kerple, distances, h), bias(alibi, distances, h)) for h in heads)
    return decide(good == 6, {"heads that agree, of 6": good}, "a bias differs")


@About("kerple", rows=("N8", "N27")).holds(
    "kerple.held",
    "Whatever is learned, KERPLE falls with the distance: p and a count as 0.01 at least.",
    "无论学到什么，KERPLE 都随距离下降：p 与 a 至少按 0.01 计。",
    says="Chi et al. 2022, the authors' code; N8",
    how="Both kernels with p and a from -5 to 5: the largest step of the bias up to distance 200.",
)
def kerple_held() -> Finding:
    worst = -math.inf
    for variant in ("log", "power"):
        kerple = Kerple(heads=9, variant=variant)
        kerple.p.copy_(torch.linspace(-5, 5, 9))
        kerple.a.copy_(torch.linspace(5, -5, 9))
        for head in range(9):
            worst = max(worst, float(bias(kerple, torch.arange(201), head).diff().max()))
    return decide(worst < 0, {"largest step": worst}, f"a farther key gains {worst:.3g}")


@about_fire.holds_within(
    "fire.progress",
    "FIRE's argument is ln(c d + 1) / ln(c max(i, L) + 1): 0.0241, 0.60628, 0.02065, 0.85194, 1.0 at five pairs.",
    "FIRE 的自变量为 ln(c d + 1)/ln(c max(i, L) + 1)：五组 (i, j) 处为 0.0241、0.60628、0.02065、0.85194、1.0。",
    says="Li et al. 2023; known values",
    how="(100, 99), (100, 0), (1000, 999), (1000, 500), (1000, 0) with c = 0.1 and L = 512.",
)
def fire_progress() -> Finding:
    i, j = torch.tensor([[100, 99], [100, 0], [1000, 999], [1000, 500], [1000, 0]]).mT
    own = progress(i, j, doubles(0.1), doubles(512.0))
    worst = largest(own - doubles([0.0241, 0.60628, 0.02065, 0.85194, 1.0]))
    return within(worst, 5.1e-5, {f"({a}, {b})": x for a, b, x in zip(i, j, own, strict=True)} | {"off by": worst})


@about_fire.depends(
    "fire.relative",
    "FIRE's bias depends on the distance only.",
    "FIRE 的偏置只取决于距离。",
    says="its family name, relative encodings",
    how="The bias at distance 5 for queries up to L = 64, and beyond it.",
)
def fire_relative() -> Finding:
    fire = Fire(heads=4, length=64)
    for name, parameter in fire.named_parameters():
        if name in ("w1", "b1", "w2"):
            parameter += normal(*parameter.shape, seed=9).float()

    def moves(places: tuple[int, ...]) -> float:
        found = torch.stack([fire.score_bias(torch.tensor([i]), torch.tensor([i - 5])).flatten() for i in places])
        return largest(found - found[0])

    trained, beyond = moves((5, 20, 64)), moves((64, 500, 4096))
    numbers = {"change for queries at 5 … 64": trained, "change for queries at 64 … 4,096": beyond}
    text = "past L the denominator knows where the query is, so equal distances have other biases"
    return depends("the place of the query", trained < 1e-6, beyond < 1e-3, numbers, text)


@About("sandwich", rows=("N25",)).holds_within(
    "sandwich.products",
    (
        "Sandwich is H / (8h) times the product of sinusoidal codes: 64, 62.0937, 45.7205, 30.5201, 14.0432 at 0, 1, "
        "8, 64, 512."
    ),
    "Sandwich 等于 H/(8h) 乘以正弦编码的内积：距离 0、1、8、64、512 处为 64、62.0937、45.7205、30.5201、14.0432。",
    says="Chi et al. 2022, Sandwich; known values",
    how="Biases of the first and the last of 8 heads against four decimals.",
)
def sandwich_products() -> Finding:
    sandwich, distances = Sandwich(heads=8), torch.tensor([0, 1, 8, 64, 512])
    known = doubles([64, 62.0937, 45.7205, 30.5201, 14.0432])
    first, last = bias(sandwich, distances) - known, bias(sandwich, distances, 7) - known / 8
    return all_within({"first head": largest(first), "last head": largest(last)}, 6e-5)


@About("sandwich", rows=("N27",)).fails(
    "sandwich.falls",
    "Sandwich falls with every step of distance.",
    "Sandwich 的偏置随距离逐步下降。",
    says='"decaying bias"',
    how="Steps of the bias from distance 0 to 256.",
)
def sandwich_falls() -> Finding:
    steps = bias(Sandwich(heads=8), torch.arange(257)).diff()
    rises = (steps > 0).nonzero().flatten()
    numbers = {"steps that rise, of 256": len(rises), "first": rises[0]}
    text = f"{len(rises)} of 256 steps rise, the first from {int(rises[0])} to {int(rises[0]) + 1}"
    return decide(not len(rises), numbers, text)
