"""The ledger as it is: complete, as expected, in both languages, with known numbers."""

import ast
import inspect
import json
import math
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import whorl
from whorl.claims import Claim, Finding, find, flags, ledger, schema, verify
from whorl.claims.probes import build
from whorl.claims.redirects import REDIRECTS

ROOT = Path(__file__).parents[2]

# Every statement of the notes that is wrong or half true, by what it says and the claim that catches it.
WRONG = {
    "theta = 10000 ** (-2·arange(0, d, 2)/d)": "note.squared-exponent",
    "theta_1 at d = 512 is 0.99": "note.theta-one",
    "small i is low frequency": "note.small-i-low-frequency",
    "a too large base lacks high frequencies": "note.large-base-no-high-frequency",
    "sin(0.1001) - sin(0.1000) is 3e-7": "note.sine-difference",
    "codes change ever less as pos grows": "note.codes-change-less",
    "past the trained length the frequencies rise": "note.frequencies-rise",
    "i = 256 at d = 512": "note.index-256",
    "RoPE extrapolates to any length": "note.rope-any-length",
    "a longer input ran without error, so it extrapolates": "note.rope-any-length",
    "RoPE at 2x is slightly worse": "note.rope-twice",
    "L_max = 2 pi / w": "aliasing.longest-wavelength",
    "RoFormer-1024 shows extrapolation": "note.roformer-1024",
    "RoPE is the only one for linear attention": "note.only-rope-linear",
    "T5 stores O(L) biases": "note.t5-stores-length",
    "BERT uses sinusoidal": "note.bert-sinusoidal",
    "LLaMA uses a simplified RoPE": "note.llama-simplified",
    "attention is permutation invariant": "note.permutation-invariant",
    "sin is sensitive near pi/2": "note.sine-sensitive",
    "the re-indexing step of the Abel proof": "note.abel-reindexing",
    "ablation and GLUE tables": "note.ablation-tables",
    "relative encodings do not suit a KV cache": "note.relative-no-cache",
    "e^(-lambda |i-j|) is not linear": "note.decay-not-linear",
    "the Kronecker product": "note.kronecker",
    "L_max = 62,832": "note.longest-62832",
    "k is a frequency channel": "note.k-channel",
    "the factor d/2 of the bound is lost": "note.bound-constant",
    "KERPLE is phi phi e^(-lambda |i-j|)": "note.kerple-exponential",
    "MOSS has ALiBi": "note.moss-alibi",
    "GPT-2 is an example of sinusoidal codes": "note.gpt2-sinusoidal",
    "CAIL2019-SCM is pairs": "note.cail-pairs",
    "learned positions are better inside the trained length": "note.learned-inside",
    "ALiBi is lighter and faster": "note.alibi-faster",
    "position fades in deep layers": "note.position-fades",
    "longer stages raise the accuracy": "note.longer-stages",
    "the Taylor argument": "note.taylor-cross-term",
    "ceil(log2 L) dimensions are the minimum": "ideal.bits",
}

# Wrong statements of which the ledger states what is right, by the claim that does.
CORRECTED = {
    "xPos is O(L^2)": "linear.cost",
    "ALiBi's attention is not scaled": "alibi.bias-unscaled",
    "many turns make gradients vanish": "rope.gradient-norm",
    "half-split code and interleaved formulas are both RoPE": "rope.layouts-permute",
}

# Statements that were taken for wrong and are not.
RIGHT = {
    "slopes are robust, even random ones do well": "alibi.slopes-robust",
    "the entropy of attention grows with the length": "note.entropy-grows",
}

# Who says it: a paper and its year, a library with its version, or the study notes.
SAYS = re.compile(r"^(study notes|[A-Z][a-z]+ et al\. 20\d\d|\w+ 20\d\d|(whorl|transformers) \d+\.\d+)\b")

# Numbers that were worked out apart from this code.
KNOWN = {
    "sinusoidal.products": {"at k = 1": 62.0937, "at k = 64": 30.5201, "at k = 256": 20.5248},
    "sinusoidal.first-negative": {"first negative at": 1707},
    "decay.values": {"mean |S_j| at 0": 32.5, "mean |S_j| at 16": 15.7750, "mean |S_j| at 256": 6.5431},
    "decay.monotone": {"steps that rise": 115},
    "note.sine-difference": {"difference": 9.95e-5},
    "note.squared-exponent": {"theta_1": 0.9647},
    "t5.saturation": {"causal: all alike from": 113},
    "aliasing.critical-dimension": {
        "d = 128, L = 4096, base 10,000": 92,
        "d = 128, L = 2048, base 10,000": 82,
        "d = 32, L = 64, base 10,000": 10,
    },
    "extension.factor-from-data": {"factor": 8 / 3},
    "extension.yarn-temperature": {"scores are multiplied by": 1.6314},
    "xpos.overflow": {"queries, float32": 32_862, "a key of length 63, not centred, overflows at, float16": 2839},
    "alibi.receptive-field": {"head 0, 16,384 keys": 10, "head 7, 16,384 keys": 1179},
    "precision.alibi-key-form": {"Falcon: two keys off each other by, 512 keys": 1.0},
    "note.bert-sinusoidal": {"with a learned table": 109_482_240},
    "ideal.neighbours-close": {"at 1": 1.9526},
}


def test_every_verdict_is_the_expected_one(whole_ledger):
    assert [
        f"{row.id}: {row.verdict} {row.finding.counterexample}" for row in whole_ledger if not row.as_expected
    ] == []
    assert not any(row.raised for row in whole_ledger)


@pytest.mark.parametrize("numbers", [{"a": 0.0, "b": math.nan}, {"a": math.nan, "b": 0.0}])
def test_a_measurement_that_is_not_a_number_fails(numbers):
    assert ledger.all_within(numbers, 1.0).verdict.kind == "fails"
    assert ledger.all_within({"a": 0.0, "b": 0.5}, 1.0).verdict.kind == "holds within"


@pytest.mark.parametrize("instead", [True, False])
def test_where_what_is_right_instead_was_not_found_nothing_is_concluded(instead):
    no, numbers = ledger.Both("no", "否"), {"a": 1.0}

    def on(when: bool, otherwise: bool) -> str:
        return ledger.depends(no, when, otherwise, numbers, no, instead=instead).verdict.kind

    assert ledger.decide(False, numbers, no, instead=instead).verdict.kind == ("fails" if instead else "inconclusive")
    assert ledger.decide(True, numbers, no, instead=instead).verdict.kind == "holds" == on(True, True)
    assert on(True, False) == ("depends on" if instead else "inconclusive")
    assert on(False, False) == ("fails" if instead else "inconclusive")


def test_it_is_large_and_ids_are_stable_names(whole_ledger):
    assert len(ledger.written()) >= 170 and len(whole_ledger) > 300
    ids = [row.id for row in whole_ledger]
    assert len(set(ids)) == len(ids)
    assert [id for id in ids if not re.fullmatch(r"[a-z0-9_+]+(-[a-z0-9_]+)*(\.[a-z0-9-]+)+", id)] == []


def test_every_file_that_writes_claims_is_read():
    home = Path(ledger.__file__).parent
    writing = {
        ".".join(path.relative_to(home).with_suffix("").parts)
        for path in home.rglob("*.py")
        if re.search(r"^@(about_\w+|About\(.*\))\.", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert writing == set(ledger.FILES)


def test_the_questions_of_the_notes_are_answered(whole_ledger):
    questions = [row for row in whole_ledger if row.id.startswith("question.")]
    assert len(questions) >= 9 and all(row.verdict.kind != "needs training" for row in questions)


def test_nothing_that_is_shown_cites_an_internal_page(whole_ledger):
    shown = json.dumps(schema.document(whole_ledger), ensure_ascii=False)
    assert re.findall(r"\bN\d+\b", shown) == []


def test_a_page_of_ours_that_is_cited_has_the_numbers_outside_the_ledgers_own_table(whole_ledger):
    cited = [(row, page) for row in whole_ledger for page in re.findall(r"docs/[\w/-]+\.md", row.claim.says)]
    assert len(cited) > 20
    missing = []
    for row, page in cited:
        prose = (ROOT / page).read_text(encoding="utf-8").partition("\n## Claims\n")[0].replace(",", "")
        numerals = re.findall(r"\d+\.\d+e-\d+|\d{3,}", row.claim.english.replace(",", ""))
        missing += [(row.id, page, one) for one in numerals if one not in prose]
    assert missing == []


def test_who_says_it_is_a_paper_a_library_with_its_version_or_the_study_notes(whole_ledger):
    assert [f"{row.id}: {row.claim.says}" for row in whole_ledger if not SAYS.match(row.claim.says)] == []
    for row in whole_ledger:
        for page in re.findall(r"(?:docs|experiments)/[\w/-]+\.md", row.claim.says):
            assert (ROOT / page).is_file(), row.id


def test_ids_that_were_joined_or_dropped_lead_to_a_claim():
    known = {claim.id for claim in ledger.every()}
    assert set(REDIRECTS.values()) <= known and not set(REDIRECTS) & known
    assert find("note.alibi-unscaled").id == "alibi.bias-unscaled"


@pytest.mark.parametrize("statement", WRONG)
def test_each_wrong_statement_is_caught(statement, whole_ledger):
    row = next(row for row in whole_ledger if row.id == WRONG[statement])
    assert row.verdict.kind in ("fails", "depends on") or row.claim.trained
    assert (
        row.claim.expected in ("fails", "depends on") or (row.claim.expected, row.verdict.kind) == ("inconclusive",) * 2
    )


@pytest.mark.parametrize("id", [*CORRECTED.values(), *RIGHT.values()])
def test_what_is_right_holds(id, whole_ledger):
    row = next(row for row in whole_ledger if row.id == id)
    assert row.verdict.kind in ("holds", "holds within") and row.claim.expected == row.verdict.kind


def test_what_only_training_decides_was_trained(whole_ledger):
    """Only flags of encodings that no committed result has are open."""
    open_yet = [row.id for row in whole_ledger if row.verdict.kind == "needs training"]
    assert [id for id in open_yet if not id.endswith(".flag.extrapolates")] == []


def test_every_flag_of_every_encoding_has_a_claim(whole_ledger):
    ids = {row.id for row in whole_ledger}
    for name in whorl.names():
        assert f"{name}.cache" in ids
        for flag in ("relative", "linear-attention", "decays", "extrapolates"):
            assert f"{name}.flag.{flag}" in ids
        touches = set(flags.VECTORS) & set(build(name).enters())
        assert (f"{name}.flag.norm-preserving" in ids) == bool(touches), name


def test_statements_are_in_both_languages_and_say_who_and_how(whole_ledger):
    chinese = re.compile(r"[\u4e00-\u9fff]")
    for row in whole_ledger:
        claim = row.claim
        assert chinese.search(claim.chinese) and claim.chinese.endswith("。"), row.id
        assert not chinese.search(claim.english) and claim.english.endswith("."), row.id
        assert claim.says and claim.how.endswith("."), row.id
        assert chinese.search(claim.how_zh) and claim.how_zh.endswith("。"), row.id
        assert chinese.search(row.verdict.chinese), row.id
        but, but_zh = row.finding.counterexample, row.finding.counterexample_zh
        assert bool(but) == bool(but_zh) and not chinese.search(but), row.id
        assert not but or but != but_zh, row.id
        for text in (claim.chinese, claim.how_zh, but_zh):
            assert not re.search(r"[a-z]{3,} [a-z]{2,}|\b(and|of|the)\b", text), f"{row.id}: English words in {text}"
        assert set(claim.about) <= set(whorl.names()), row.id


# Bounds that are said in words.
IN_WORDS = {
    0.5: "half",
    0.1: "a tenth",
    0.01: "(1 %|part in a hundred)",
    0.02: "2 %",
    0.99: "(1|99) %",
    0.001: "a thousandth",
    0.005: "two decimals",
    5e-5: "four decimals",
}


def bounds(claim: Claim) -> Iterator[float]:
    """The numbers, not whole, that the test of a claim compares something with."""
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(claim.test))).body
    for node in ast.walk(function):
        for other in node.comparators if isinstance(node, ast.Compare) else ():
            if isinstance(other, ast.Constant) and isinstance(other.value, float):
                yield other.value


@pytest.mark.parametrize("claim", ledger.written(), ids=lambda claim: claim.id)
def test_how_names_every_bound(claim):
    said = re.sub(r"(?<=\d),(?=\d)", "", claim.how)
    for bound in bounds(claim):
        exactly = f"{bound:.1e}".replace(".0e", "e").replace("e-0", "e-")
        written = re.escape(f"{bound:g}" if bound >= 0.01 else exactly)
        assert re.search(rf"{written}|{IN_WORDS.get(bound, written)}", said), bound


def test_every_row_has_numbers_and_a_failed_one_its_counterexample(whole_ledger):
    for row in whole_ledger:
        if row.verdict.kind == "needs training":
            assert row.finding.command.startswith(("whorl ", "python ")) and row.claim.trained, row.id
        else:
            assert row.numbers, row.id
            assert all(isinstance(value, float) and value == value for value in row.numbers.values()), row.id
        sources = row.finding.source.split(ledger.BETWEEN)
        assert sources == [ledger.COMPUTED] or all(
            one.startswith(("experiments/", "benchmarks/")) and (ROOT / one).is_file() for one in sources
        )
        if row.verdict.kind in ("fails", "depends on", "inconclusive"):
            assert row.finding.counterexample, row.id


@pytest.mark.parametrize("id", KNOWN)
def test_numbers_are_the_known_ones(id, whole_ledger):
    numbers = next(row for row in whole_ledger if row.id == id).numbers
    for name, value in KNOWN[id].items():
        assert numbers[name] == pytest.approx(value, rel=1e-4), name


def test_it_takes_seconds(ledger_run):
    assert ledger_run.seconds < 30  # of one core; 60 s on two are the promise


def test_a_run_is_the_same_again_and_leaves_no_trace(whole_ledger):
    torch.manual_seed(5)
    threads, state, mine = torch.get_num_threads(), torch.get_rng_state(), whorl.TableCache()
    before = whorl.use_table_cache(mine)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            rows = {row.id: row for row in verify(["kerple", "fire", "forgetting_gate", "rope"])}
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads
    assert whorl.use_table_cache(before) is mine and torch.is_grad_enabled()
    for row in whole_ledger:
        if row.id in rows:
            assert dict(rows[row.id].numbers) == dict(row.numbers), row.id


def test_a_claim_that_breaks_is_red_even_where_failing_is_expected():
    def broken() -> Finding:
        raise ZeroDivisionError("oh")

    claim = Claim(
        id="a.b", english="A.", chinese="甲。", says="x", how="y.", expected="fails", test=broken, topic="flags"
    )
    (row,) = ledger.run([claim])
    assert row.raised and not row.as_expected and "ZeroDivisionError: oh" in row.finding.counterexample


@pytest.mark.parametrize("expected", ["holds", "fails", "depends on"])
def test_a_number_that_is_none_is_red_whatever_is_expected(expected):
    def measured() -> Finding:
        return ledger.decide(expected == "holds", {"a": 1.0, "b": math.nan}, ledger.Both("no", "否"))

    claim = Claim(
        id="a.b", english="A.", chinese="甲。", says="x", how="y.", expected=expected, test=measured, topic="flags"
    )
    (row,) = ledger.run([claim])
    assert row.raised and not row.as_expected and row.finding.counterexample == "not a number: b"


def test_the_docs_explain_every_field_and_topic():
    page = (Path(__file__).parents[2] / "docs" / "claims.md").read_text(encoding="utf-8")
    for name in (*schema.SCHEMA["properties"], *schema.CLAIM["properties"]):
        assert f"`{name}`" in page, name
    for word in (*ledger.TOPICS, "flags"):
        assert f"| {word} |" in page, word
    assert schema.NAME in page
