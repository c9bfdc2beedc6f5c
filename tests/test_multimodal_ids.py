"""Multimodal ids against a token-by-token loop and against get_rope_index of transformers, and every refusal."""

from __future__ import annotations

import importlib
from fractions import Fraction
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whorl.errors import WhorlError
from whorl.multimodal_hf import multimodal_from_hf, segments_from_hf
from whorl.multimodal_ids import Image, Text, Video, decode_offset, multimodal, timestamped
from whorl.position_ids import pad_rows, positions

quick = settings(max_examples=60, deadline=None)
RULES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


def ids_loop(segments, rule, merge, tokens_per_second):
    """The rules of the papers, one token after another: a list of (time, row, column)."""
    out = []
    for segment in segments:
        start = max((max(token) for token in out), default=-1) + 1
        if isinstance(segment, Text):
            out += [(start + i,) * 3 for i in range(segment.length)]
            continue
        frames = segment.frames if isinstance(segment, Video) else 1
        for k in range(frames):
            time = k
            if rule == "qwen2_5_vl" and isinstance(segment, Video):
                time = (k * tokens_per_second * segment.seconds_per_frame).__floor__()
            if rule == "qwen3_vl":
                time, start = 0, max((max(token) for token in out), default=-1) + 1
            for i in range(segment.height // merge):
                for j in range(segment.width // merge):
                    out.append((start + time, start + i, start + j))
    return out


@st.composite
def segment_lists(draw, rule, merge, longest=9):
    def size():
        return merge * draw(st.integers(1, 4))

    def video():
        seconds = Fraction(draw(st.integers(1, 40)), draw(st.integers(1, 30))) if rule == "qwen2_5_vl" else None
        return Video(draw(st.integers(1, longest)), size(), size(), seconds)

    makers = {"text": lambda: Text(draw(st.integers(0, 5))), "image": lambda: Image(size(), size()), "video": video}
    return [makers[kind]() for kind in draw(st.lists(st.sampled_from(sorted(makers)), max_size=6))]


# the rules


@quick
@given(st.data(), st.sampled_from(RULES), st.integers(1, 3), st.integers(1, 4))
def test_ids_equal_the_loop(data, rule, merge, rate):
    segments = data.draw(segment_lists(rule, merge))
    speed = {"tokens_per_second": rate} if rule == "qwen2_5_vl" else {}
    found = multimodal(segments, rule=rule, merge=merge, **speed)
    expected = ids_loop(segments, rule, merge, rate)
    assert found.dtype == torch.int64
    assert found.shape == (3, len(expected))
    assert found.T.tolist() == [list(token) for token in expected]
    assert found.shape[1] == sum(segment.tokens(merge) for segment in segments)
    shifted = multimodal(segments, rule=rule, merge=merge, offset=11, **speed)
    assert torch.equal(shifted, found + 11)


def test_text_is_plain_positions():
    assert torch.equal(multimodal([Text(3), Text(4)], rule="qwen2_vl"), positions(7).expand(3, -1))


def test_nothing_gives_nothing():
    assert multimodal([], rule="qwen3_vl").shape == (3, 0)


def test_a_merge_of_one_keeps_all_patches():
    assert multimodal([Image(2, 2)], rule="qwen2_vl", merge=1).tolist() == [[0] * 4, [0, 0, 1, 1], [0, 1, 0, 1]]


def test_text_after_a_long_video_starts_behind_it():
    """20 frames of 2 x 2 tokens after 3 text tokens: time ids 3 to 22, so text goes on at 23."""
    found = multimodal([Text(3), Video(20, 4, 4), Text(3)], rule="qwen2_vl")
    assert found[0, 3:-3].unique().tolist() == list(range(3, 23))
    assert found[:, -3:].tolist() == [[23, 24, 25]] * 3


def test_seconds_are_rounded_after_multiplying():
    """Steps of 2 · 0.7 = 1.4 ids: rounding the step or the seconds first would give 0, 1, 2, 3, 4 or zeros."""
    found = multimodal([Video(5, 2, 2, 0.7)], rule="qwen2_5_vl", tokens_per_second=2)
    assert found[0].tolist() == [0, 1, 2, 4, 5]
    half = multimodal([Video(5, 2, 2, 0.25)], rule="qwen2_5_vl", tokens_per_second=2)
    assert half[0].tolist() == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("rate", [1, 2, 4, 25])
@pytest.mark.parametrize("as_dtype", [torch.float64, torch.float32])
def test_seconds_as_floats_mean_the_ratio(rate, as_dtype):
    """floor(k · 2 / fps · rate) in whole numbers; a product of floats falls below the whole ones now and then."""
    slips = 0
    for fps in range(1, 61):
        seconds = (torch.tensor(2.0, dtype=as_dtype) / fps).item()
        found = multimodal([Video(200, 2, 2, seconds)], rule="qwen2_5_vl", tokens_per_second=rate)
        assert found[0].tolist() == [k * 2 * rate // fps for k in range(200)]
        slips += sum(int(k * (rate * seconds)) != k * 2 * rate // fps for k in range(200))
    assert slips > 0


def test_seconds_of_film_rates():
    seconds = 2 / (24_000 / 1001)
    found = multimodal([Video(3000, 2, 2, seconds)], rule="qwen2_5_vl", tokens_per_second=2)
    assert found[0].tolist() == [k * 4 * 1001 // 24_000 for k in range(3000)]


def test_qwen3_frames_are_blocks_of_their_own():
    video = Video(2, 4, 6)
    found = multimodal([Text(1), video, Text(1)], rule="qwen3_vl")
    apart = multimodal([Text(1), Image(4, 6), Image(4, 6), Text(1)], rule="qwen3_vl")
    assert torch.equal(found, apart)
    assert found[0].tolist() == [0, *[1] * 6, *[4] * 6, 7]


def test_timestamped_puts_text_around_frames():
    video = Video(2, 4, 4)
    assert timestamped(video, before=[6, 7], after=1) == [
        Text(6),
        Video(1, 4, 4),
        Text(1),
        Text(7),
        Video(1, 4, 4),
        Text(1),
    ]
    assert timestamped(video, before=3) == [Text(3), Video(1, 4, 4), Text(0), Text(3), Video(1, 4, 4), Text(0)]


# decoding and batches


@quick
@given(st.data(), st.sampled_from(["qwen2_vl", "qwen3_vl"]), st.integers(0, 4))
def test_decoding_continues_the_ids(data, rule, steps):
    segments = [*data.draw(segment_lists(rule, 2)), Text(1)]
    ids = multimodal(segments, rule=rule)
    more = multimodal([*segments, Text(steps)], rule=rule)[:, ids.shape[1] :]
    offset = decode_offset(ids)
    assert offset.shape == ()
    assert torch.equal(positions(steps, offset=ids.shape[1] + offset).expand(3, -1), more)


@pytest.mark.parametrize("side", ["left", "right"])
def test_decoding_of_a_padded_batch(side):
    rows = [multimodal(s, rule="qwen2_vl") for s in ([Text(2), Image(4, 8), Text(2)], [Text(4)], [Image(8, 8)])]
    alone = [int(decode_offset(row)) for row in rows]
    assert alone == [8 - 12, 0, 4 - 16]
    lengths = [row.shape[1] for row in rows]
    for given_as in (lengths, torch.tensor(lengths, dtype=torch.int32)):
        assert decode_offset(pad_rows(rows, side=side), lengths=given_as).tolist() == alone


def test_decode_offset_reads_no_device_values():
    ids = torch.empty(3, 2, 5, dtype=torch.int64, device="meta")
    assert decode_offset(ids, lengths=torch.empty(2, dtype=torch.int32, device="meta")).shape == (2,)
    assert decode_offset(torch.empty(3, 0, dtype=torch.int64)).tolist() == 0


def test_defaults_of_torch_are_not_asked():
    with torch.device("meta"):
        ids = multimodal([Text(1), Image(2, 2)], rule="qwen2_vl")
        batch, offsets = multimodal_from_hf([[0, 1]], rule="qwen2_vl", image_grid_thw=[[1, 2, 2]])
    assert {tensor.device.type for tensor in (ids, batch, offsets)} == {"cpu"}
    assert multimodal([Text(1)], rule="qwen2_vl", device="meta").device.type == "meta"
    batch, offsets = multimodal_from_hf([[0]], rule="qwen2_vl", device="meta")
    assert batch.device.type == offsets.device.type == "meta"


# transformers


def processed(rows, merge, side, rule):
    """What a processor hands to a model: token types, grids over the whole batch, seconds and a mask."""
    types, images, videos, seconds = [], [], [], []
    for row in rows:
        kinds = []
        for segment in row:
            if isinstance(segment, Text):
                kinds += [0] * segment.length
            elif isinstance(segment, Image):
                images.append([1, segment.height, segment.width])
                kinds += [1] * (segment.height * segment.width // merge**2)
            else:
                videos.append([segment.frames, segment.height, segment.width])
                seconds.append(segment.seconds_per_frame)
                frame = segment.height * segment.width // merge**2
                # Qwen3-VL prompts have text between the frames; here one token in front of each.
                kinds += ([0] + [2] * frame) * segment.frames if rule == "qwen3_vl" else [2] * frame * segment.frames
        types.append(kinds)
    total = max(map(len, types)) + 1
    pads = [[0] * (total - len(kinds)) for kinds in types]
    left = side == "left"
    table = [p + t if left else t + p for t, p in zip(types, pads, strict=True)]
    mask = [p + [1] * len(t) if left else [1] * len(t) + p for t, p in zip(types, pads, strict=True)]
    out = {"attention_mask": torch.tensor(mask)}
    if images:
        out["image_grid_thw"] = torch.tensor(images)
    if videos:
        out["video_grid_thw"] = torch.tensor(videos)
    if videos and rule == "qwen2_5_vl":
        out["second_per_grid_ts"] = seconds
    return torch.tensor(table), out


def rope_index(rule, token_types, merge, rate, **inputs):
    """get_rope_index of transformers, without building a model."""
    name = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[rule]
    model = getattr(importlib.import_module(f"transformers.models.{rule}.modeling_{rule}"), f"{name}Model")
    vision = SimpleNamespace(spatial_merge_size=merge, tokens_per_second=rate)
    stub = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    stub.get_vision_position_ids = partial(model.get_vision_position_ids, stub)
    ids, deltas = model.get_rope_index(stub, token_types, mm_token_type_ids=token_types, **inputs)
    return ids, deltas.squeeze(1)


def short_rows(draw, rule, merge, rate):
    """Rows where transformers is right: text between pictures, and no video longer than its side."""
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        row = [Text(draw(st.integers(1, 4)))]
        for _ in range(draw(st.integers(0, 3))):
            height, width = (merge * draw(st.integers(1, 5)) for _ in range(2))
            if draw(st.booleans()):
                row.append(Image(height, width))
            else:
                seconds = draw(st.sampled_from([0.25, 0.5, 0.75, 1.0])) if rule == "qwen2_5_vl" else None
                step = rate * seconds if seconds else 1
                longest = int((max(height, width) // merge - 1) / step) + 1
                row.append(Video(draw(st.integers(1, longest)), height, width, seconds))
            row.append(Text(draw(st.integers(1, 4))))
        rows.append(row)
    return rows


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("side", ["left", "right"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_transformers_agrees_on_images_and_short_videos(rule, side, data):
    merge, rate = data.draw(st.sampled_from([1, 2])), data.draw(st.sampled_from([1, 2, 4]))
    types, inputs = processed(short_rows(data.draw, rule, merge, rate), merge, side, rule)
    speed = {"tokens_per_second": rate} if rule == "qwen2_5_vl" else {}
    ids, offsets = multimodal_from_hf(types, rule=rule, merge=merge, **speed, **inputs)
    theirs, deltas = rope_index(rule, types, merge, rate, **inputs)
    assert torch.equal(ids, theirs)
    assert torch.equal(offsets, deltas)


@pytest.mark.parametrize("rule", ["qwen2_vl", "qwen2_5_vl"])
def test_transformers_lets_text_restart_inside_a_long_video(rule):
    """Ours is right where they differ: the papers' next id is the largest + 1, theirs (5.22.2) the longer side.

    20 frames of 2 x 2 tokens take the time ids 3 to 22. Transformers numbers the text behind them 5, 6, 7, which are
    ids of the video, and then decodes from 23 on.
    """
    seconds, speed = (0.5, {"tokens_per_second": 2}) if rule == "qwen2_5_vl" else (None, {})
    row = [Text(3), Video(20, 4, 4, seconds), Text(3)]
    types, inputs = processed([row], 2, "right", rule)
    inputs["attention_mask"][:] = 1
    ids, offsets = multimodal_from_hf(types[:, :-1], rule=rule, **speed, **{**inputs, "attention_mask": None})
    assert ids[:, 0, -3:].tolist() == [[23, 24, 25]] * 3
    assert (ids.shape[-1] + offsets).tolist() == [26]
    theirs, _ = rope_index(rule, types[:, :-1], 2, 2, **{**inputs, "attention_mask": None})
    assert torch.equal(ids[..., :-3], theirs[..., :-3])


# reading Hugging Face inputs


@quick
@given(st.data(), st.sampled_from(RULES), st.sampled_from(["left", "right"]))
def test_segments_are_read_back(data, rule, side):
    rows = [[Text(2), *data.draw(segment_lists(rule, 2, longest=3)), Text(1)] for _ in range(2)]
    types, inputs = processed(rows, 2, side, rule)
    speed = {"tokens_per_second": 2} if rule == "qwen2_5_vl" else {}
    ids, offsets = multimodal_from_hf(types, rule=rule, **speed, **inputs)
    for i, row in enumerate(rows):
        written = [
            part
            for segment in row
            for part in (
                timestamped(segment, before=1) if rule == "qwen3_vl" and isinstance(segment, Video) else [segment]
            )
        ]
        expected = torch.tensor(ids_loop(written, rule, 2, 2)).T
        real = inputs["attention_mask"][i].bool()
        assert torch.equal(ids[:, i, real], expected)
        assert not ids[:, i, ~real].any()
        assert offsets[i] == expected.max() + 1 - expected.shape[1]


def test_images_side_by_side_are_told_apart():
    """Eight image tokens in a run: 2 x 2 and 2 x 2 tokens, or 1 x 2 and 3 x 2, as the grids say."""
    types = [[0, *[1] * 8, 0]]
    for grids in ([[1, 4, 4], [1, 4, 4]], [[1, 2, 4], [1, 6, 4]]):
        found = segments_from_hf(types, rule="qwen2_vl", image_grid_thw=grids)
        assert found == [[Text(1), *[Image(h, w) for _, h, w in grids], Text(1)]]


def test_grids_are_shared_out_over_the_rows_and_lists_will_do():
    types = [[0, 1, 0], [1, 2, 2]]
    inputs = {"image_grid_thw": [[1, 2, 2], [1, 2, 2]], "video_grid_thw": [[1, 4, 2]], "second_per_grid_ts": [0.5]}
    found = segments_from_hf(types, rule="qwen2_5_vl", attention_mask=[[True, True, False], [True] * 3], **inputs)
    assert found == [[Text(1), Image(2, 2)], [Image(2, 2), Video(1, 4, 2, 0.5)]]


def test_a_row_of_padding_alone_is_empty():
    ids, offsets = multimodal_from_hf([[0, 0], [0, 0]], rule="qwen2_vl", attention_mask=[[0, 0], [1, 1]])
    assert ids[0].tolist() == [[0, 0], [0, 1]]
    assert offsets.tolist() == [0, 0]


def test_a_batch_without_video_may_name_the_rate():
    ids, _ = multimodal_from_hf([[0, 0]], rule="qwen2_5_vl", tokens_per_second=2)
    assert ids[0].tolist() == [[0, 1]]


# refusals

TIMED = Video(2, 4, 4, 0.5)
two = torch.zeros(2, 6, dtype=torch.int64)
REFUSALS = [
    (lambda: Text(-1), "Text: length must be 0 or more, got -1."),
    (lambda: Text(2.0), "Text: length must be an integer, got 2.0."),
    (lambda: Image(0, 4), "Image: height must be 1 or more, got 0."),
    (lambda: Image(4, True), "Image: width must be an integer, got True."),
    (lambda: Video(0, 4, 4), "Video: frames must be 1 or more, got 0."),
    (lambda: Video(2, 4, 4, -0.5), "Video: seconds_per_frame must be finite and above 0, got -0.5."),
    (lambda: Video(2, 4, 4, float("nan")), "Video: seconds_per_frame must be finite and above 0, got nan."),
    (lambda: Video(2, 4, 4, "1"), "Video: seconds_per_frame must be a number, got '1'."),
    (
        lambda: Image(4, 6).tokens(4),
        "Image.tokens: height and width must be multiples of merge=4, got (4, 6). "
        "They count patches before merging; resize, or pass the model's spatial_merge_size.",
    ),
    (
        lambda: multimodal([Image(5, 4)], rule="qwen2_vl"),
        "multimodal: height and width must be multiples of merge=2, got (5, 4). "
        "They count patches before merging; resize, or pass the model's spatial_merge_size.",
    ),
    (lambda: multimodal([3], rule="qwen2_vl"), "multimodal: segments must be a list of Text, Image and Video, got 3."),
    (lambda: multimodal([Text(1)], rule="qwen2vl"), "multimodal: unknown rule 'qwen2vl'. Did you mean 'qwen2_vl'?"),
    (lambda: multimodal([Text(1)], rule="qwen2_vl", merge=0), "multimodal: merge must be 1 or more, got 0."),
    (lambda: multimodal([Text(1)], rule="qwen2_vl", offset=1.5), "multimodal: offset must be an integer, got 1.5."),
    (
        lambda: multimodal([TIMED], rule="qwen3_vl"),
        "multimodal: seconds_per_frame must be left out for rule='qwen3_vl', got 0.5. "
        "That rule does not look at seconds; rule='qwen2_5_vl' does.",
    ),
    (
        lambda: multimodal([Text(1)], rule="qwen2_vl", tokens_per_second=2),
        "multimodal: tokens_per_second must be left out for rule='qwen2_vl', got 2. "
        "That rule does not look at seconds; rule='qwen2_5_vl' does.",
    ),
    (
        lambda: multimodal([Video(2, 4, 4)], rule="qwen2_5_vl", tokens_per_second=2),
        "multimodal: seconds_per_frame must be given for a Video with rule='qwen2_5_vl', got None. "
        "It is temporal_patch_size / fps, or the processor's second_per_grid_ts.",
    ),
    (
        lambda: multimodal([TIMED], rule="qwen2_5_vl"),
        "multimodal: tokens_per_second must be given for a Video with rule='qwen2_5_vl', got None. "
        "It is in the checkpoint's vision_config.",
    ),
    (
        lambda: multimodal([TIMED], rule="qwen2_5_vl", tokens_per_second=0),
        "multimodal: tokens_per_second must be finite and above 0, got 0.",
    ),
    (lambda: timestamped(Image(4, 4), before=1), "timestamped: video must be a Video, got Image(height=4, width=4)."),
    (lambda: timestamped(TIMED, before=[1]), "timestamped: before must be one integer or 2, one per frame, got [1]."),
    (lambda: timestamped(TIMED, before=1, after=-1), "timestamped: after must be 0 or more, got -1."),
    (
        lambda: decode_offset(positions(3)),
        "decode_offset: ids must be int64 of shape (axes, length) or (axes, batch, length), "
        "got torch.int64 of shape (3,).",
    ),
    (
        lambda: decode_offset(positions(3).expand(3, -1), lengths=[3]),
        "decode_offset: lengths must be one integer per row of ids, got [3]. "
        "Rows are the second axis of (axes, batch, length); ids have (3, 3).",
    ),
    (
        lambda: segments_from_hf([0, 1], rule="qwen2_vl"),
        "segments_from_hf: token_types must be integers of shape (batch, length), got [0, 1].",
    ),
    (
        lambda: segments_from_hf([[0, 1], [0]], rule="qwen2_vl"),
        "segments_from_hf: token_types must be integers of shape (batch, length), got [[0, 1], [0]].",
    ),
    (
        lambda: segments_from_hf([[0, 151655]], rule="qwen2_vl"),
        "segments_from_hf: token_types must be 0 (text), 1 (image) or 2 (video), got 151655. "
        "Pass the processor's mm_token_type_ids, not input_ids.",
    ),
    (
        lambda: segments_from_hf([[True]], rule="qwen2_vl"),
        "segments_from_hf: token_types must be integers of shape (batch, length), got [[True]].",
    ),
    (
        lambda: segments_from_hf(two, rule="qwen2_vl", attention_mask=two[:, 1:]),
        "segments_from_hf: attention_mask must be of the shape of token_types, (2, 6), "
        "got torch.int64 of shape (2, 5).",
    ),
    (
        lambda: segments_from_hf([[1]], rule="qwen2_vl", image_grid_thw=[[2, 2]]),
        "segments_from_hf: image_grid_thw must be rows of 3 integers, got [[2, 2]].",
    ),
    (
        lambda: segments_from_hf([[1]], rule="qwen2_vl", image_grid_thw=[[2, 2, 2]]),
        "segments_from_hf: image_grid_thw must be rows of 1, height, width, got [2, 2, 2]. "
        "Grids with more than one time step belong in video_grid_thw.",
    ),
    (
        lambda: segments_from_hf([[1]], rule="qwen2_vl"),
        "segments_from_hf: image_grid_thw must match the token types, got too few: 1 of 1 image tokens in row 0 "
        "have no grid. Pass one grid per image.",
    ),
    (
        lambda: segments_from_hf([[0, 0], [2, 2]], rule="qwen2_vl", video_grid_thw=[[3, 2, 2]]),
        "segments_from_hf: video_grid_thw must match the token types, got grids of 3 tokens for a run of 2 in row 1. "
        "Pass the model's spatial_merge_size as merge=…, and prompts that are not cut off.",
    ),
    (
        lambda: segments_from_hf([[0, 1]], rule="qwen2_vl", image_grid_thw=[[1, 2, 2]] * 3),
        "segments_from_hf: image_grid_thw must match the token types, got 2 without tokens. "
        "Pass the grids of this batch alone, and the token types of the whole prompt.",
    ),
    (
        lambda: segments_from_hf([[2]], rule="qwen2_5_vl", video_grid_thw=[[1, 2, 2]], second_per_grid_ts=[1.0, 1.0]),
        "segments_from_hf: second_per_grid_ts must be 1 numbers, one per row of video_grid_thw, got [1.0, 1.0].",
    ),
    (
        lambda: multimodal_from_hf([[2]], rule="qwen2_5_vl", video_grid_thw=[[1, 2, 2]], tokens_per_second=2),
        "multimodal: seconds_per_frame must be given for a Video with rule='qwen2_5_vl', got None. "
        "It is temporal_patch_size / fps, or the processor's second_per_grid_ts.",
    ),
]


@pytest.mark.parametrize(("request_", "message"), REFUSALS, ids=[message[:60] for _, message in REFUSALS])
def test_refusals(request_, message):
    with pytest.raises(WhorlError) as caught:
        request_()
    assert str(caught.value) == message
