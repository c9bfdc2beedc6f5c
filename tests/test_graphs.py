"""Constants held for graphs: made outside of every mode, computed once, and bounded in number."""

import gc

import pytest
import torch
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


def test_what_is_held_in_graphs_is_computed_for_every_other_call():
    halves, calls = counted(graphs.held_in_graphs)
    cpu = torch.device("cpu")
    assert halves(4, cpu) is not halves(4, cpu) and calls == [4, 4]
    with FakeTensorMode():
        assert isinstance(halves(4, cpu), FakeTensor)
    calls.clear()
    compiled = torch.compile(lambda x: x + halves(4, cpu), fullgraph=True, dynamic=True, backend="eager")
    assert compiled(torch.ones(4)).tolist() == [1.0, 1.5, 2.0, 2.5]
    assert compiled(torch.ones(2, 4)).tolist() == [[1.0, 1.5, 2.0, 2.5]] * 2
    assert calls == [4]


def test_what_is_kept_where_plain_is_computed_anew_under_a_fake_mode():
    halves, calls = counted(tracing.kept_where_plain)
    cpu = torch.device("cpu")
    with FakeTensorMode():
        assert isinstance(halves(4, cpu), FakeTensor)
    assert calls == [4] and type(halves(4, cpu)) is torch.Tensor
    assert halves(4, cpu) is halves(4, cpu) and calls == [4, 4]


def test_a_graph_takes_the_constants_of_several_functions():
    @graphs.held
    def threes(count):
        return torch.full((count,), 3.0)

    halves, _ = counted(graphs.held_in_graphs)
    cpu = torch.device("cpu")
    compiled = torch.compile(lambda x: x + halves(4, cpu) + threes(4), fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(4)).tolist() == [4.0, 4.5, 5.0, 5.5]


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
