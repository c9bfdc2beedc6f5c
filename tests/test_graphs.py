"""Constants held for graphs: made outside of every mode, computed once, and bounded in number."""

import gc
import weakref

import pytest
import torch
import torch._dynamo
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import whorl
from whorl import graphs, tracing
from whorl.config import Config, config
from whorl.encodings.rope import RopeConfig


def counted(decorator):
    calls = []

    @decorator
    def halves(count, device):
        calls.append(count)
        return torch.arange(count, device=device) / 2

    return halves, calls


def test_a_held_result_is_made_once_and_outside_of_every_mode():
    halves, calls = counted(graphs.held)
    cpu = torch.device("cpu")
    with FakeTensorMode(), torch.inference_mode():
        made = halves(4, cpu)
    assert not isinstance(made, FakeTensor) and not made.is_inference()
    assert made.tolist() == [0.0, 0.5, 1.0, 1.5]
    assert halves(4, cpu) is made and calls == [4]


def test_a_graph_takes_what_is_kept_in_graphs():
    halves, calls = counted(tracing.kept_in_graphs)
    cpu = torch.device("cpu")
    compiled = torch.compile(lambda x: x + halves(4, cpu), fullgraph=True, dynamic=True, backend="eager")
    assert compiled(torch.ones(4)).tolist() == [1.0, 1.5, 2.0, 2.5]
    assert compiled(torch.ones(2, 4)).tolist() == [[1.0, 1.5, 2.0, 2.5]] * 2
    assert calls == [4]
    assert halves(4, cpu) is halves(4, cpu) and calls == [4]


@pytest.mark.parametrize("kept", [tracing.kept_where_plain, tracing.kept_in_graphs])
def test_what_is_kept_where_plain_is_computed_anew_under_a_fake_mode(kept):
    halves, calls = counted(kept)
    cpu = torch.device("cpu")
    with FakeTensorMode():
        assert isinstance(halves(4, cpu), FakeTensor)
    assert calls == [4] and type(halves(4, cpu)) is torch.Tensor
    assert halves(4, cpu) is halves(4, cpu) and calls == [4, 4]


def test_a_graph_takes_the_constants_of_several_functions():
    @tracing.kept_in_graphs
    def threes(count):
        return torch.full((count,), 3.0)

    halves, _ = counted(tracing.kept_in_graphs)
    cpu = torch.device("cpu")
    compiled = torch.compile(lambda x: x + halves(4, cpu) + threes(4), fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(4)).tolist() == [4.0, 4.5, 5.0, 5.5]


def test_a_graph_takes_several_constants_of_one_function_each_once():
    halves, cpu, found = counted(tracing.kept_in_graphs)[0], torch.device("cpu"), []

    def backend(graph, _):
        found.extend(str(node.target) for node in graph.graph.nodes if node.op == "get_attr")
        return graph

    def joined(x):
        return torch.cat((x, halves(2, cpu), halves(3, cpu), halves(2, cpu)))

    for run in (joined, torch.compile(joined, fullgraph=True, backend=backend)):
        assert run(torch.ones(1)).tolist() == [1.0, 0.0, 0.5, 0.0, 0.5, 1.0, 0.0, 0.5]
    assert len(found) == len(set(found)) == 2


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
def test_what_a_graph_of_a_transform_made_is_a_plain_tensor(transform):
    halves, calls = counted(tracing.kept_in_graphs)
    cpu = torch.device("cpu")
    run = transform(lambda x: (x * halves(4, cpu)).sum())
    x = torch.ones(4) if transform is torch.func.grad else torch.ones(2, 4)
    for compiled in (torch.compile(run, fullgraph=True, backend="aot_eager"), run):
        assert torch.equal(compiled(x), torch.arange(4) / 2 if x.ndim == 1 else torch.full((2,), 3.0))
    kept = halves(4, cpu)
    assert calls[0] == 4 and type(kept) is torch.Tensor and kept.tolist() == [0.0, 0.5, 1.0, 1.5]


def test_a_constant_goes_with_the_graph_that_has_it():
    halves, cpu = counted(tracing.kept_in_graphs)[0], torch.device("cpu")
    compiled = torch.compile(lambda x: x + halves(4, cpu), fullgraph=True, backend="aot_eager")
    compiled(torch.ones(4))
    kept = weakref.ref(halves(4, cpu))
    halves.cache_clear()
    gc.collect()
    assert kept() is not None and compiled(torch.ones(4)).tolist() == [1.0, 1.5, 2.0, 2.5]
    del compiled
    torch._dynamo.reset()
    gc.collect()
    assert kept() is None


def test_equal_configs_share_a_text_and_others_have_their_own():
    first, second = graphs.with_text(RopeConfig(head_dim=8)), graphs.with_text(RopeConfig(head_dim=8))
    assert first[1] == second[1] and first[0] is second[0]
    assert graphs.with_text(RopeConfig(head_dim=8, base=7.0))[1] != first[1]
    assert graphs.value_of(first[1]) == RopeConfig(head_dim=8)


def test_a_config_class_defined_anew_has_a_text_of_its_own():
    def defined():
        @config
        class Same(Config):
            size: int = 1

        return Same()

    old, new = defined(), defined()
    assert repr(old) == repr(new) and graphs.with_text(old)[1] != graphs.with_text(new)[1]


def test_texts_of_configs_that_nobody_keeps_are_forgotten_and_never_used_again():
    lost = graphs.with_text(RopeConfig(head_dim=8, base=2.0))[1]
    rope = whorl.Rope(head_dim=8, base=3.0)
    for i in range(graphs.MOST_HELD):
        graphs.with_text(RopeConfig(head_dim=8, base=10.0 + i))
    gc.collect()
    with pytest.raises(KeyError):
        graphs.value_of(lost)
    assert graphs.with_text(RopeConfig(head_dim=8, base=2.0))[1] != lost
    # an encoding keeps its config, and with it the meaning of its text
    graphs.with_text.cache_clear()
    assert graphs.value_of(rope._text) is rope.config
    assert rope.frequencies().tolist() == pytest.approx([3.0 ** (-i / 4) for i in range(4)])


@pytest.mark.parametrize("given", [lambda: whorl.Alibi(heads=4).slopes(), lambda: whorl.Rope(head_dim=8).frequencies()])
def test_who_asks_for_numbers_that_are_kept_may_write_into_them(given):
    kept = given().clone()
    given().zero_()
    assert torch.equal(given(), kept) and kept.count_nonzero() == 4
