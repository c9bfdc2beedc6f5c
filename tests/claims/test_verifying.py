"""``verify``: the claims about some encodings, by name, class or instance."""

import pytest
import torch

import whorl
from whorl.claims import find, verify


def test_names_bring_what_is_written_of_them_and_their_flags():
    ids = {row.id for row in verify("alibi")}
    assert {"alibi.slopes", "alibi.bias-unscaled", "alibi.flag.decays", "alibi.cache"} <= ids
    assert not any(id.startswith(("rope.flag", "t5.")) for id in ids)
    both = {row.id for row in verify(["alibi", "t5"])}
    assert ids < both and "t5.edges" in both


def test_an_encoding_itself_is_tested_with_its_own_settings_and_not_changed():
    torch.manual_seed(0)
    t5 = whorl.T5(heads=3, max_distance=64)
    before = t5.table.detach().clone()
    rows = {row.id: row for row in verify(t5)}
    assert all(row.as_expected for row in rows.values())
    assert torch.equal(t5.table, before) and t5.table.dtype == torch.float32 and t5.table.requires_grad
    scaled = {row.id: row for row in verify(whorl.Rope(head_dim=8, scaling=whorl.Yarn(factor=8.0, original_length=64)))}
    assert scaled["rope.flag.norm-preserving"].numbers["largest relative change of a norm"] == pytest.approx(
        0.2079, abs=1e-4
    )


def test_unknown_names_and_other_things_are_refused():
    with pytest.raises(whorl.WhorlError, match=r"unknown encoding 'ropes'. Did you mean 'rope'\?"):
        verify("ropes")
    with pytest.raises(
        whorl.WhorlError, match=r"verify: encodings must be names, encodings or encoding classes, got 3"
    ):
        verify([3])  # pyright: ignore[reportArgumentType]
    with pytest.raises(whorl.WhorlError, match="or the joined encoding itself"):
        verify("combined")
    with pytest.raises(whorl.WhorlError, match=r"unknown claim 'rope.relativ'. Did you mean 'rope.relative'\?"):
        find("rope.relativ")
    assert find("rope.relative").about == ("rope",)
