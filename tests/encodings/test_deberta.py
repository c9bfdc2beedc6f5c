"""DeBERTa's disentangled attention against the oracle and transformers' module, versions 1, 2 and 3."""

import pytest
import torch
from transformers import DebertaV2Config
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention, make_log_bucket_position

import whorl
from dense_flow import attend, by_parameters, tokens, trained
from oracles import deberta as oracle
from whorl.encodings.deberta import bucket, bucket_starts, row_index

CLOSE = {"rtol": 0, "atol": 1e-12}


def make(heads=2, head_dim=4, span=4, max_distance=9, **settings):
    return trained(whorl.Deberta(heads=heads, head_dim=head_dim, span=span, max_distance=max_distance, **settings))


def expected(deberta, q, k, q_positions, k_positions):
    own = deberta.config
    kr, qr = (
        None if projection is None else deberta._by_head(projection).detach().numpy()
        for projection in (deberta.position_key, deberta.position_query)
    )
    buckets = None if own.max_distance is None else own.span
    return torch.tensor(
        oracle.scores(
            *(x[0].detach().numpy() for x in (q, k)),
            kr,
            qr,
            q_positions.tolist(),
            k_positions.tolist(),
            own.span,
            buckets,
            own.max_distance,
            own.position_to_content or "paper",
        )
    )


TERMS = [(True, "code"), (True, "paper"), (True, None), (False, "code"), (False, "paper")]


@pytest.mark.parametrize("content, position", TERMS)
@pytest.mark.parametrize("span, max_distance", [(4, 9), (8, 33), (5, None), (2, 5), (3, 40)])
def test_against_the_oracle(content, position, span, max_distance):
    settings = {"content_to_position": content, "position_to_content": position, "width": 6}
    deberta = make(span=span, max_distance=max_distance, **settings)
    q, k, v = tokens(14, dim=4)
    ids = torch.arange(14) * 3
    got = attend(deberta, q, k, v, ids, ids, causal=False)
    torch.testing.assert_close(got.scores[0], expected(deberta, q, k, ids, ids), **CLOSE)
    apart, far = attend(deberta, q[:, :, :2], k, v, ids[:2] + 500, ids, causal=False), ids[:2] + 500
    torch.testing.assert_close(apart.scores[0], expected(deberta, q[:, :, :2], k, far, ids), **CLOSE)


@pytest.mark.parametrize("span, max_distance", [(256, 512), (32, 512), (8, 33), (4, 9), (2, 5), (64, 100)])
def test_buckets_against_the_oracle_and_transformers(span, max_distance):
    relative = torch.arange(-700, 701)
    got = row_index(bucket(relative, span, bucket_starts(span, max_distance)), span).tolist()
    assert got == [oracle.index(r, span, span, max_distance) for r in relative.tolist()]
    theirs = make_log_bucket_position(relative, span, max_distance).long()
    assert got == (theirs + span).clamp(0, 2 * span - 1).tolist()


def test_golden_buckets():
    golden = {0: 0, 1: 1, 127: 127, 128: 128, 150: 143, 200: 169, 256: 192, 511: 255, 512: 256, 600: 256}
    ids = torch.tensor(list(golden))
    starts = bucket_starts(256, 512)
    assert starts[0] == 129 and len(starts) == 128
    assert bucket(ids, 256, starts).tolist() == list(golden.values())  # past 512 the table ends
    assert bucket(-ids, 256, starts).tolist() == [-b for b in golden.values()]


@pytest.mark.parametrize("position_buckets, share", [(-1, False), (8, False), (8, True)])
@pytest.mark.parametrize("kinds", [["c2p", "p2c"], ["c2p"], ["p2c"]])
def test_against_transformers(position_buckets, share, kinds):
    """Released weights fit with position_to_content="code", through a module of versions 2 and 3."""
    heads, dim, length, span = 2, 4, 14, 8
    config = DebertaV2Config(
        hidden_size=heads * dim,
        num_attention_heads=heads,
        relative_attention=True,
        pos_att_type=kinds,
        position_buckets=position_buckets,
        max_relative_positions=span if position_buckets < 0 else 12,
        share_att_key=share,
    )
    torch.manual_seed(0)
    module = DisentangledSelfAttention(config).double().eval()
    hidden = torch.randn(2, length, heads * dim, dtype=torch.float64)
    relative = torch.randn(2 * span, heads * dim, dtype=torch.float64)
    mask = torch.ones(2, 1, length, length, dtype=torch.bool)
    deberta = whorl.Deberta(
        heads=heads,
        head_dim=dim,
        span=span,
        max_distance=None if position_buckets < 0 else 12,
        content_to_position="c2p" in kinds,
        position_to_content="code" if "p2c" in kinds else None,
    ).double()
    sources = {"position_key": "key_proj", "position_query": "query_proj"}
    state = {"relative": relative}
    for ours, theirs in sources.items():
        if getattr(deberta, ours) is not None:
            projection = getattr(module, theirs if share else f"pos_{theirs}")
            state |= {f"{ours}.weight": projection.weight, f"{ours}.bias": projection.bias}
    deberta.load_state_dict(state)
    with torch.no_grad():
        out, weights = module(hidden, mask, output_attentions=True, rel_embeddings=relative)
        q, k, v = (
            getattr(module, f"{name}_proj")(hidden).view(2, length, heads, dim).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        ids = torch.arange(length)
        got = attend(deberta, q, k, v, ids, ids, causal=False)
        # their scale is a float32 root
        torch.testing.assert_close(got.weights, weights, rtol=0, atol=1e-7)
        torch.testing.assert_close(got.out.transpose(1, 2).flatten(-2), out, rtol=0, atol=1e-6)
        if "p2c" in kinds:
            paper = whorl.Deberta.from_config(deberta.config.replace(position_to_content="paper")).double()
            paper.load_state_dict(deberta.state_dict())
            other = attend(paper, q, k, v, ids, ids, causal=False)
            assert float((other.weights - weights).abs().max()) > 0.01


def test_scale_counts_the_terms():
    sizes = {"heads": 2, "head_dim": 64}
    assert whorl.Deberta(**sizes).softmax_scale(64) == pytest.approx(1 / (3 * 64) ** 0.5)
    assert whorl.Deberta(**sizes, position_to_content=None).softmax_scale(64) == pytest.approx(1 / (2 * 64) ** 0.5)


@pytest.mark.parametrize("form", ["code", "paper"])
def test_gradients(form):
    deberta = make(head_dim=2, position_to_content=form, width=3)
    q, k, v = tokens(4, dim=2, grad=True)
    ids = torch.tensor([0, 1, 4, 9])

    def run(q, k):
        return attend(deberta, q, k, v, ids, ids, causal=False).weights

    assert torch.autograd.gradcheck(run, (q, k))
    call, parameters = by_parameters(
        deberta, lambda: attend(deberta, q.detach(), k.detach(), v, ids, ids, causal=False).weights
    )
    assert torch.autograd.gradcheck(call, parameters)


def test_layers_may_share_the_table():
    one, two = (whorl.Deberta(heads=2, head_dim=4) for _ in range(2))
    two.relative = one.relative
    plan = torch.nn.ModuleList([one, two])
    assert len(list(plan.parameters())) == 5 + 4
