"""Every word of the report, in English and in Chinese; the two have the same keys.

What comes out is plain text: whoever puts it on the page escapes it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from whorl.errors import unknown
from whorl.lab.report.reading import AS_TRAINED, WINDOW

# Names as people write them. A label that is not here stands as it is.
NAMES = {
    "alibi": "ALiBi",
    "cope": "CoPE",
    "deberta": "DeBERTa",
    "fire": "FIRE",
    "forgetting_gate": "forgetting gate",
    "kerple": "KERPLE",
    "none": "NoPE",  # "none holds" would say the opposite
    "rope": "RoPE",
    "sandwich": "Sandwich",
    "shaw": "Shaw",
    "t5": "T5",
    "transformer_xl": "Transformer-XL",
    "xpos": "xPos",
    "dynamic-ntk": "dynamic NTK",
    "leaky-rerope": "leaky ReRoPE",
    "logn": "log-n",
    "ntk": "NTK",
    "pi": "PI",
    "rerope": "ReRoPE",
    "rerope+logn": "ReRoPE + log-n",
    "yarn": "YaRN",
    "yarn-beta4": "YaRN β4",
    "yarn-beta8": "YaRN β8",
}

EN = {
    "lang": "en",
    "and": " and ",
    "comma": ", ",
    "semicolon": "; ",
    "space": " ",
    "open": " (",
    "close": ")",
    "missing": "–",
    # -- the top of the page
    "title": "Position encodings past the trained length",
    "facts_text": "{encodings} encodings trained at length {trained}, tested to {longest} ({ratio})",
    "facts_task": "{encodings} encodings trained at length {trained} on synthetic tasks",
    "facts_seeds_one": "1 seed",
    "facts_seeds_many": "{n} seeds",
    "verdict": "Verdict",
    "care": "Read with care",
    # -- the verdict
    "best": "At the trained length ({length}) {name} has the lowest loss, {value} bits per byte{ties}.",
    "best_near": "At length {length}, tested in place of the trained {trained}, {name} is lowest with {value}{ties}.",
    "best_ties_one": "; {names} ties with it",
    "best_ties_many": "; {names} tie with it",
    "no_length_beyond": "No length beyond the trained one was tested, so nothing can be said about extrapolation.",
    "holds_one": (
        "Up to {ratio} that length ({far}), read on {protocol}, only {names} holds: "
        "its loss rises by at most {limit} bits."
    ),
    "holds_many": (
        "Up to {ratio} that length ({far}), read on {protocol}, {names} hold: their loss rises by at most {limit} bits."
    ),
    "holds_none": (
        "Up to {ratio} that length ({far}), read on {protocol}, no encoding holds as trained, "
        "which is to rise by at most {limit} bits."
    ),
    "further_one": "{names} still holds at {ratio} ({length}).",
    "further_many": "{names} still hold at {ratio} ({length}).",
    "further_all": "All of them still hold at {ratio} ({length}).",
    "further_none": "None of them still holds at {ratio} ({length}).",
    "breaks_one": "{items} breaks, with a rise of more than {limit} bits.",
    "breaks_many": "These break, with a rise of more than {limit} bits: {items}.",
    "breaks_item": "{name} from {length} on ({ratio}{rise})",
    "breaks_rise": "; {rise} at {length}",
    "breaks_not_finite": "; the loss is no finite number",
    "drifts_one": "{items} drifts in between.",
    "drifts_many": "{items} drift in between.",
    "ends": "{name} ends at {length}, with its table.",
    "ends_unknown": "{name} has no values as far as that.",
    "repairs": "Repairs of the trained {name}, at {ratio} ({length}), where it has {base} unrepaired: {parts}.",
    "repairs_helps_one": "{items} helps",
    "repairs_helps_many": "{items} help",
    "repairs_none_helps": "none helps",
    "repairs_harms_one": "{items} makes it worse",
    "repairs_harms_many": "{items} make it worse",
    "repairs_same_one": "{items} changes it by less than the noise",
    "repairs_same_many": "{items} change it by less than the noise",
    "repairs_holds_one": "{names} holds to {ratio}",
    "repairs_holds_many": "{names} hold to {ratio}",
    "repairs_none_holds": "none holds to {ratio}",
    "uses_one": "Longer context is really used, with a loss on the same tokens that falls, by {items}.",
    "uses_many": "Longer context is really used, with a loss on the same tokens that falls, by {items}.",
    "uses_none": (
        "Nobody's loss on the same tokens falls by more than the noise ({noise}), "
        "so that longer context is used is not shown here."
    ),
    "uses_hint_one": "A smaller fall hints at it: {items}.",
    "uses_hint_many": "Smaller falls hint at it: {items}.",
    "uses_item": "{name} ({fall} at {length})",
    "only_holds_one": "{names} only holds.",
    "only_holds_many": "{names} only hold.",
    "task_solved": "On {task}, exact match stays at {solved} or more up to length {items}.",
    "task_item": "{length} for {names}",
    "task_nobody": "On {task}, nobody reaches an exact match of {solved} at the trained length.",
    "task_unsolved_one": "{items} does not solve {task} even at the trained length.",
    "task_unsolved_many": "{items} do not solve {task} even at the trained length.",
    "task_fails_one": "{items} falls below {failed}.",
    "task_fails_many": "These fall below {failed}: {items}.",
    "task_fails_item": "{name} from {length} on",
    # -- what to read with care
    "note_ties": "Differences below {noise} bits are ties{source}.",
    "note_ties_seeds": " (what {n} seeds spread)",
    "note_best_far": "Lowest at {ratio} ({length}) is {name} with {value}{ties}.",
    "note_not_same_last": (
        "The same last tokens were not scored, so whether longer context is used does not show here; "
        "the verdict reads {protocol}."
    ),
    "note_window_below": (
        "Loss alone misleads. A window of the trained length on {name} sees nothing further back and still scores "
        "{value} at {ratio}. Lower than the window on the same model by more than the noise: {items}."
    ),
    "note_window_none": (
        "Loss alone misleads. A window of the trained length on {name} sees nothing further back and still scores "
        "{value} at {ratio}. Nobody is lower than the window on the same model by more than the noise."
    ),
    "note_no_window": "No window baseline was run: a loss may hold because the model looks no further back.",
    "note_recall": "{measure} at {ratio} ({length}), each against the window on the same model: {parts}.",
    "against": "{value} against {window}",
    "note_recall_reaching": "{items} reach further back",
    "note_recall_reaching_one": "{items} reaches further back",
    "note_recall_nobody": "nobody gets clearly more",
    "note_recall_not": "{items} hold their loss without finding far text again",
    "note_recall_not_one": "{items} holds its loss without finding far text again",
    "note_recall_plain": "{measure} at {ratio} ({length}): best is {name} with {value}.",
    "note_no_recall": "No repeated-text or retrieval score was run, so a low loss here does not prove reach.",
    "note_flattered": (
        "Non-overlapping blocks flatter: at {ratio} {name} rises by {hidden} bits there "
        "and by {shown} on the same last tokens."
    ),
    "note_orders_one": "The one published order checked reproduces here ({sources}).",
    "note_orders_all": "All {n} published orders checked reproduce here ({sources}).",
    "note_orders_some": "Of {n} published orders checked {reproduced} reproduce here.",
    "note_reversed": "Not reproduced: {better} ahead of {worse} ({source}); {where} {low} against {high}{otherwise}.",
    "note_tied": "Not told apart: {better} ahead of {worse} ({source}); {where} {low} against {high}.",
    "note_where_length": "at {ratio}",
    "note_where_task": "mean exact match on {task} past the trained length",
    "note_otherwise": ", though in non-overlapping blocks it does",
    "note_one_seed": "One seed: what another would give is not known, and intervals over documents do not say it.",
    "note_scale": "Models of {parameters} parameters, trained for {steps} steps: at another scale orders may differ.",
    "note_untrained": (
        "With {value} bits per byte at best the models have learned little more than how often bytes occur: "
        "train longer before reading anything into their order."
    ),
    "note_t5": (
        "{name} has max_distance {distance}, beyond half the trained length {trained}: "
        "its far buckets were hardly trained, so its fall there is no verdict on T5."
    ),
    "note_yarn": (
        "With a trained length below {length} the default ramp of YaRN interpolates every dimension: "
        "its place here is that of its settings."
    ),
    # -- figures
    "loss_heading": "Loss by length",
    "figure_encodings": "Encodings as trained",
    "figure_repairs": "{name} repaired after training",
    "figure_caption": "Lengths in powers of two; the vertical line marks the trained one, {trained}.",
    "figure_bands": "Bands: {interval}.",
    "figure_bars": "Bars: {interval}.",
    "figure_caption_documents": (
        "All lines are scored on the same documents, so they may differ though their bars overlap."
    ),
    "figure_caption_close": "The close-up shows the same lines near the best; the first panel has those that leave it.",
    "figure_caption_window": "Grey: a window of the trained length on {name}, the reference that sees no further back.",
    "interval_seeds": "95% intervals over seeds",
    "interval_documents": "± 2 standard errors over documents",
    "close_up": "close-up",
    "bits_per_byte": "bits per byte",
    "nats_per_token": "nats per token",
    "share_right": "share right",
    "trained_mark": "trained",
    "window_short": "window",
    "as_trained": "as trained",
    "window_name": "{name}, window",
    "repair_name": "{name} + {variant}",
    "tuned": "{name}, tuned {steps} steps",
    "panel_desc": "Lines of {measure} by length from {first} to {last}: {names}.",
    "curve_desc": "Training loss by step to step {last}: {names}.",
    "point": "{name} at {length}: {value}",
    "point_interval": "{name} at {length}: {value} ({low} to {high})",
    "learning_heading": "Learning curves",
    "learning_title": "Training loss",
    "learning_caption": "Training loss by step, mean over seeds; the first steps that lie above the frame are cut off.",
    "tasks_heading": "Tasks",
    "task_title": "Task {task}",
    "task_caption": "Share of items answered without a single error, and of tokens answered right.",
    # -- tables
    "table_loss": "{measure}, bits per byte by length",
    "table_score": "{measure} by length, per cent right",
    "table_task": "{task}: {measure} by length, per cent",
    "encoding": "encoding",
    "bold_low": "Bold: lowest in its column. ≈: within {noise} bits of it, a tie. ±: {interval}.",
    "bold_high": "Bold: highest in its column. ≈: within {noise} points of it. ±: {interval}.",
    "window_out": "The window is a reference and takes no part in this.",
    "foot_table": "past its table of {length} positions",
    "foot_broken": "the loss is no finite number",
    "foot_unmeasured": "not measured",
    "recall_heading": "Finding far text again",
    "table_heading": "Numbers",
    # -- cards
    "cards_heading": "The encodings",
    "parameters": "parameters",
    "parameters_own": "{all} ({own} in the encoding)",
    "tokens_per_second": "tokens/s",
    "peak_memory_bytes": "peak memory",
    "seeds": "seeds",
    "claims": "claims",
    "measured": "measured",
    "repaired": "repaired",
    "repaired_item": "{name}: {state}",
    "own_window": "its window",
    "own_window_text": "{value} at {ratio}, the model {own}",
    "warnings": "warnings",
    "yes": "yes",
    "no": "no",
    "claim_relative": "relative",
    "claim_norm_preserving": "norm kept",
    "claim_linear_attention": "linear attention",
    "claim_decays": "decays",
    "claim_extrapolates": "extrapolates",
    "measured_holds": "holds to {ratio} ({rise})",
    "measured_breaks": "breaks at {ratio} ({length})",
    "measured_drifts": "drifts: {rise} at {ratio}",
    "measured_ends": "ends at {length}",
    "measured_reach": "{task}: solved to {length}",
    "measured_unsolved": "{task}: not solved at the trained length",
    # -- the end of the page
    "reproduce_heading": "How to reproduce",
    "command": "Command",
    "results": "Runs",
    "corpus": "Corpus",
    "corpus_text": "{name}: {train} to train on, {test} held out, {documents} documents",
    "machine": "Machine and versions",
    "created": "Written",
    "definitions": "What is measured",
    "trust_noise": "Noise",
    "trust_noise_text": "two losses closer than {noise} bits per byte are called a tie.",
    "define_hold": "Holds, breaks",
    "define_hold_text": (
        "a loss holds while it is at most {hold} bits above its value at the trained length, "
        "and breaks where it is more than {limit} above."
    ),
    "env_python": "Python",
    "env_torch": "PyTorch",
    "env_whorl": "whorl",
    "env_cpu": "processor",
    "env_cores": "cores",
    "env_gpu": "GPU",
    "env_date": "date",
    "env_platform": "system",
    "env_numpy": "NumPy",
    "env_torch_threads": "threads",
    "env_load": "load at the start",
    # -- measures: short name, name in a sentence, definition
    "same_last": "same last tokens",
    "same_last_in": "the same last tokens",
    "same_last_define": (
        "the same last tokens of each document are scored while the context before them grows; "
        "a model that uses more context gets better, so this is the one the verdict reads."
    ),
    "sliding": "sliding",
    "sliding_in": "the last tokens of sliding windows",
    "sliding_define": (
        "a window of the length slides over the text in steps as long as it is, and only its last quarter is scored; "
        "every token has at least three quarters of the length before it."
    ),
    "non_overlapping": "non-overlapping",
    "non_overlapping_in": "non-overlapping blocks",
    "non_overlapping_define": (
        "the text is cut into blocks of the length and every token is scored; longer blocks have fewer tokens with "
        "little context, so the loss falls even where no more context is used."
    ),
    "window_define_name": "window",
    "window_define": (
        "the trained model with attention cut to the trained length; it cannot see further back, "
        "so only what beats it shows use of longer context."
    ),
    "repeated_text_accuracy": "repeated text",
    "repeated_text_accuracy_define": (
        "one text is repeated to the length; the share of tokens predicted right in the repeats shows whether the "
        "model finds the first copy again."
    ),
    "retrieval_accuracy": "retrieval",
    "retrieval_accuracy_define": "the share of items hidden in the context that the model gives back when asked.",
    "exact_match": "exact match",
    "exact_match_define": "the share of task items answered without a single error.",
    "token_accuracy": "token accuracy",
    "token_accuracy_define": "the share of answer tokens that are right.",
}

ZH = {
    "lang": "zh-CN",
    "and": " 和 ",
    "comma": "、",
    "semicolon": "；",
    "space": "",
    "open": "（",
    "close": "）",
    "missing": "–",
    "title": "超出训练长度之后的位置编码",
    "facts_text": "{encodings} 种编码，训练长度 {trained}，测试到 {longest}（{ratio}）",
    "facts_task": "{encodings} 种编码，在合成任务上训练，训练长度 {trained}",
    "facts_seeds_one": "1 个随机种子",
    "facts_seeds_many": "{n} 个随机种子",
    "verdict": "结论",
    "care": "阅读提示",
    "best": "在训练长度（{length}）上，{name} 的损失最低，为每字节 {value} 比特{ties}。",
    "best_near": "在长度 {length}（代替训练长度 {trained} 测试）上，{name} 的损失最低，为 {value}{ties}。",
    "best_ties_one": "；{names} 与它不分上下",
    "best_ties_many": "；{names} 与它不分上下",
    "no_length_beyond": "没有测试超过训练长度的文本，因此无法判断外推能力。",
    "holds_one": "直到训练长度的 {ratio}（{far}），按{protocol}看，只有 {names} 保持住：损失上升不超过 {limit} 比特。",
    "holds_many": "直到训练长度的 {ratio}（{far}），按{protocol}看，{names} 保持住：损失上升不超过 {limit} 比特。",
    "holds_none": "直到训练长度的 {ratio}（{far}），按{protocol}看，没有编码能原样保持，即上升不超过 {limit} 比特。",
    "further_one": "到 {ratio}（{length}）时，{names} 依然保持。",
    "further_many": "到 {ratio}（{length}）时，{names} 依然保持。",
    "further_all": "到 {ratio}（{length}）时，它们依然全部保持。",
    "further_none": "到 {ratio}（{length}）时，它们都没能保持。",
    "breaks_one": "损失上升超过 {limit} 比特、即失效的是 {items}。",
    "breaks_many": "损失上升超过 {limit} 比特、即失效的有：{items}。",
    "breaks_item": "{name} 从 {length} 起（{ratio}{rise}）",
    "breaks_rise": "；到 {length} 时 {rise}",
    "breaks_not_finite": "；损失已不是有限的数",
    "drifts_one": "{items} 介于两者之间，缓慢变差。",
    "drifts_many": "{items} 介于两者之间，缓慢变差。",
    "ends": "{name} 到 {length} 为止：它的位置表只有这么长。",
    "ends_unknown": "{name} 没有那么长的数据。",
    "repairs": "训练好的 {name} 不作修补时在 {ratio}（{length}）处为 {base}；各种修补：{parts}。",
    "repairs_helps_one": "{items} 有效",
    "repairs_helps_many": "{items} 有效",
    "repairs_none_helps": "没有一种有效",
    "repairs_harms_one": "{items} 反而更差",
    "repairs_harms_many": "{items} 反而更差",
    "repairs_same_one": "{items} 的变化小于噪声",
    "repairs_same_many": "{items} 的变化小于噪声",
    "repairs_holds_one": "能保持到 {ratio} 的是 {names}",
    "repairs_holds_many": "能保持到 {ratio} 的是 {names}",
    "repairs_none_holds": "没有一种能保持到 {ratio}",
    "uses_one": "真正用上更长上下文的（同一批词元上的损失下降）是 {items}。",
    "uses_many": "真正用上更长上下文的（同一批词元上的损失下降）有 {items}。",
    "uses_none": "没有模型在同一批词元上的损失下降超过噪声（{noise}）：这里看不出谁用上了更长的上下文。",
    "uses_hint_one": "下降幅度小于噪声、只算迹象的是 {items}。",
    "uses_hint_many": "下降幅度小于噪声、只算迹象的有：{items}。",
    "uses_item": "{name}（{length} 处 {fall}）",
    "only_holds_one": "{names} 只是保持而已。",
    "only_holds_many": "{names} 只是保持而已。",
    "task_solved": "在 {task} 任务上，完全匹配率不低于 {solved} 的长度：{items}。",
    "task_item": "{names} 到 {length}",
    "task_nobody": "在 {task} 任务上，没有模型在训练长度内达到 {solved} 的完全匹配率。",
    "task_unsolved_one": "{items} 在训练长度内就没有学会 {task}。",
    "task_unsolved_many": "{items} 在训练长度内就没有学会 {task}。",
    "task_fails_one": "完全匹配率跌破 {failed} 的是 {items}。",
    "task_fails_many": "完全匹配率跌破 {failed} 的有：{items}。",
    "task_fails_item": "{name} 从 {length} 起",
    "note_ties": "小于 {noise} 比特的差别算作不分上下{source}。",
    "note_ties_seeds": "（{n} 个随机种子之间的波动）",
    "note_best_far": "在 {ratio}（{length}）处最低的是 {name}，为 {value}{ties}。",
    "note_not_same_last": "没有按相同末尾词元评分，因此看不出是否用上了更长的上下文；结论依据的是{protocol}。",
    "note_window_below": (
        "只看损失会误判。给 {name} 加上训练长度的窗口，它看不到更远处，在 {ratio} 处仍有 {value}。"
        "比同一模型的窗口更低、且超过噪声的有：{items}。"
    ),
    "note_window_none": (
        "只看损失会误判。给 {name} 加上训练长度的窗口，它看不到更远处，在 {ratio} 处仍有 {value}。"
        "没有模型比自己的窗口低出噪声以外。"
    ),
    "note_no_window": "没有运行窗口基线：损失保持不变的模型，也可能根本没有看向更远处。",
    "note_recall": "{measure}，{ratio}（{length}）处，各与同一模型的窗口相比：{parts}。",
    "against": "{value} 对 {window}",
    "note_recall_reaching": "{items} 看得更远",
    "note_recall_reaching_one": "{items} 看得更远",
    "note_recall_nobody": "没有模型明显更高",
    "note_recall_not": "{items} 保住了损失，却找不回远处的文本",
    "note_recall_not_one": "{items} 保住了损失，却找不回远处的文本",
    "note_recall_plain": "{measure}，{ratio}（{length}）处：最好的是 {name}，为 {value}。",
    "note_no_recall": "没有运行重复文本或检索测试，因此损失低并不能证明看得远。",
    "note_flattered": "不重叠分块会美化结果：{ratio} 处 {name} 按分块上升 {hidden} 比特，按相同末尾词元上升 {shown}。",
    "note_orders_one": "所核对的一项已发表的先后次序在这里得到重现（{sources}）。",
    "note_orders_all": "所核对的 {n} 项已发表的先后次序在这里全部重现（{sources}）。",
    "note_orders_some": "所核对的 {n} 项已发表的先后次序中，有 {reproduced} 项在这里重现。",
    "note_reversed": "没有重现：{better} 优于 {worse}（{source}）；{where} {low} 对 {high}{otherwise}。",
    "note_tied": "分不出高下：{better} 优于 {worse}（{source}）；{where} {low} 对 {high}。",
    "note_where_length": "{ratio} 处",
    "note_where_task": "{task} 超出训练长度后的平均完全匹配率",
    "note_otherwise": "，不过按不重叠分块则与发表的一致",
    "note_one_seed": "只有一个随机种子：换一个种子结果如何并不知道，文档之间的区间也说明不了。",
    "note_scale": "模型有 {parameters} 个参数，训练了 {steps} 步：换一个规模，次序可能不同。",
    "note_untrained": ("最好的也有每字节 {value} 比特，模型学到的不过是字节的频率：先训练得更久，再谈它们的次序。"),
    "note_t5": (
        "{name} 的 max_distance 为 {distance}，超过训练长度 {trained} 的一半：远处的桶几乎没有训练到，"
        "它在远处的表现不能算作对 T5 的判断。"
    ),
    "note_yarn": "训练长度小于 {length} 时，YaRN 的默认斜坡会对所有维度做内插：它在这里的名次取决于其设置。",
    "loss_heading": "各长度的损失",
    "figure_encodings": "各编码（训练后原样）",
    "figure_repairs": "训练后修补的 {name}",
    "figure_caption": "横轴为长度，按 2 的幂；竖线标出训练长度 {trained}。",
    "figure_bands": "色带：{interval}。",
    "figure_bars": "误差线：{interval}。",
    "figure_caption_documents": "所有的线都在同一批文档上评分，因此误差线重叠并不表示它们没有差别。",
    "figure_caption_close": "局部放大图是同样的线在最优值附近的样子；离开它的线见第一幅。",
    "figure_caption_window": "灰色：给 {name} 加上训练长度的窗口，是看不到更远处的参照。",
    "interval_seeds": "随机种子之间的 95% 区间",
    "interval_documents": "文档之间的 ± 2 倍标准误",
    "close_up": "局部放大",
    "bits_per_byte": "比特/字节",
    "nats_per_token": "奈特/词元",
    "share_right": "正确比例",
    "trained_mark": "训练长度",
    "window_short": "窗口",
    "as_trained": "原样",
    "window_name": "{name}，窗口",
    "repair_name": "{name} + {variant}",
    "tuned": "{name}，微调 {steps} 步",
    "panel_desc": "{measure}随长度从 {first} 到 {last} 变化的折线：{names}。",
    "curve_desc": "训练损失随步数变化，直到第 {last} 步：{names}。",
    "point": "{name}，{length}：{value}",
    "point_interval": "{name}，{length}：{value}（{low} 到 {high}）",
    "learning_heading": "学习曲线",
    "learning_title": "训练损失",
    "learning_caption": "各步的训练损失，取各随机种子的平均；最初几步高出图框的部分已截去。",
    "tasks_heading": "任务",
    "task_title": "任务 {task}",
    "task_caption": "一字不错的题目所占比例，以及答对的词元所占比例。",
    "table_loss": "{measure}：各长度的比特/字节",
    "table_score": "{measure}：各长度的正确率（%）",
    "table_task": "{task}：各长度的{measure}（%）",
    "encoding": "编码",
    "bold_low": "粗体：该列最低。≈：与最低相差在 {noise} 比特以内，不分上下。±：{interval}。",
    "bold_high": "粗体：该列最高。≈：与最高相差在 {noise} 个百分点以内。±：{interval}。",
    "window_out": "窗口是参照，不参与评比。",
    "foot_table": "超出了它 {length} 个位置的表",
    "foot_broken": "损失不是有限的数",
    "foot_unmeasured": "未测量",
    "recall_heading": "找回远处的文本",
    "table_heading": "数据",
    "cards_heading": "各编码",
    "parameters": "参数",
    "parameters_own": "{all}（其中编码 {own}）",
    "tokens_per_second": "词元/秒",
    "peak_memory_bytes": "内存峰值",
    "seeds": "随机种子",
    "claims": "声称",
    "measured": "实测",
    "repaired": "修补",
    "repaired_item": "{name}：{state}",
    "own_window": "它的窗口",
    "own_window_text": "{ratio} 处 {value}，模型本身 {own}",
    "warnings": "警告",
    "yes": "是",
    "no": "否",
    "claim_relative": "相对位置",
    "claim_norm_preserving": "保持范数",
    "claim_linear_attention": "线性注意力",
    "claim_decays": "随距离衰减",
    "claim_extrapolates": "可外推",
    "measured_holds": "保持到 {ratio}（{rise}）",
    "measured_breaks": "在 {ratio}（{length}）失效",
    "measured_drifts": "缓慢变差：{ratio} 处 {rise}",
    "measured_ends": "到 {length} 为止",
    "measured_reach": "{task}：做对到 {length}",
    "measured_unsolved": "{task}：训练长度内未学会",
    "reproduce_heading": "如何重现",
    "command": "命令",
    "results": "各次运行",
    "corpus": "语料",
    "corpus_text": "{name}：训练 {train}，测试 {test}，共 {documents} 篇文档",
    "machine": "机器与版本",
    "created": "写于",
    "definitions": "测量的是什么",
    "trust_noise": "噪声",
    "trust_noise_text": "相差不到每字节 {noise} 比特的两个损失算作不分上下。",
    "define_hold": "保持与失效",
    "define_hold_text": "损失比训练长度处高出不超过 {hold} 比特为保持，高出 {limit} 比特以上为失效。",
    "env_python": "Python",
    "env_torch": "PyTorch",
    "env_whorl": "whorl",
    "env_cpu": "处理器",
    "env_cores": "核数",
    "env_gpu": "GPU",
    "env_date": "日期",
    "env_platform": "系统",
    "env_numpy": "NumPy",
    "env_torch_threads": "线程",
    "env_load": "开始时的负载",
    "same_last": "相同末尾词元",
    "same_last_in": "相同末尾词元",
    "same_last_define": (
        "始终给每篇文档末尾的同一批词元评分，而前面的上下文不断加长；用得上更多上下文的模型会变好，所以结论以它为准。"
    ),
    "sliding": "滑动窗口",
    "sliding_in": "滑动窗口的末尾词元",
    "sliding_define": (
        "该长度的窗口在文本上滑动，每次移动自身的长度，只给最后四分之一的词元评分；"
        "每个词元前面至少有该长度四分之三的上下文。"
    ),
    "non_overlapping": "不重叠分块",
    "non_overlapping_in": "不重叠分块",
    "non_overlapping_define": (
        "把文本切成该长度的块，所有词元都评分；块越长，缺少上下文的词元越少，即使没有用上更多上下文，损失也会下降。"
    ),
    "window_define_name": "窗口",
    "window_define": "训练好的模型，注意力截断到训练长度；它看不到更远处，只有胜过它才说明用上了更长的上下文。",
    "repeated_text_accuracy": "重复文本",
    "repeated_text_accuracy_define": "把一段文本重复到该长度；重复部分预测正确的词元比例，说明模型能否找回第一遍。",
    "retrieval_accuracy": "检索",
    "retrieval_accuracy_define": "藏在上下文里的条目，被问到时模型能答对的比例。",
    "exact_match": "完全匹配率",
    "exact_match_define": "一字不错的题目所占的比例。",
    "token_accuracy": "词元正确率",
    "token_accuracy_define": "答案中正确的词元所占的比例。",
}

WORDS = {"en": EN, "zh": ZH}
VARIANTS = {AS_TRAINED: "as_trained", WINDOW: "window_short"}
LOOSE = re.compile(r" *([，。、；：（）]) *|(?<=[一-鿿]) +(?=[一-鿿])")  # spaces that joining names left in Chinese


class Words:
    """The words of one language: ``words("best", name=…)`` fills in a sentence.

    >>> Words("en")("foot_table", length=64), Words("zh").list(["RoPE", "T5", "ALiBi"])
    ('past its table of 64 positions', 'RoPE、T5 和 ALiBi')
    """

    def __init__(self, lang: str, call: str = "write_report") -> None:
        if lang not in WORDS:
            raise unknown("lang", lang, WORDS, call=call)
        self._words = WORDS[lang]

    def __call__(self, key: str, /, **fields: Any) -> str:
        return self._tidy(self._words[key].format(**fields))

    def _tidy(self, said: str) -> str:
        return LOOSE.sub(lambda found: found[1] or "", said) if self._words is ZH else said

    def __contains__(self, key: str) -> bool:
        return key in self._words

    def counted(self, key: str, number: int, **fields: Any) -> str:
        """The sentence for one or for many."""
        return self(f"{key}_{'one' if number == 1 else 'many'}", **fields)

    def list(self, items: Sequence[str]) -> str:
        """The items as a list in a sentence."""
        if len(items) < 2:
            return "".join(items)
        return self._tidy(self("comma").join(items[:-1]) + self("and") + items[-1])

    def name(self, label: str, variant: str | None = None) -> str:
        """What a row is called; a window and a repair carry the name of the model they belong to."""
        first, space, rest = label.partition(" ")  # labels of a sweep carry settings after the name
        own = NAMES.get(first, first) + space + rest
        if variant is None or variant == AS_TRAINED:
            return own
        if variant == WINDOW:
            return self("window_name", name=own)
        return self("repair_name", name=own, variant=self.variant(variant))

    def variant(self, variant: str) -> str:
        """What a repair is called where the model it belongs to is known."""
        repair, tuned, steps = variant.partition(", tuned ")
        name = self(VARIANTS[repair]) if repair in VARIANTS else NAMES.get(repair, repair)
        return self("tuned", name=name, steps=steps.removesuffix(" steps")) if tuned else name
