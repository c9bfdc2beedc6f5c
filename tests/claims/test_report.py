"""The ledger as a page."""

from whorl.claims import schema
from whorl.claims.report import markdown, rows_of, short, summary


def test_the_page_holds_every_claim_in_both_languages(whole_ledger):
    document = schema.document(whole_ledger)
    page = markdown(document)
    assert page.startswith("# The ledger of claims\n\n") and summary(document) in page
    for claim in rows_of(document):
        assert (
            f"### {claim['id']}: {claim['verdict']['en']}\n\n{claim['statement']['en']}\n\n{claim['statement']['zh']}\n"
            in page
        )
    assert short(-0.0001234) == "-0.00012"


def test_in_chinese_every_claim_has_statement_how_verdict_and_counterexample(whole_ledger):
    document = schema.document(whole_ledger)
    page = markdown(document, "zh")
    assert page.startswith("# 论断账本\n\n") and summary(document, "zh") in page and "全部符合预期" in page
    for claim in rows_of(document):
        section = page.split(f"### {claim['id']}: ", 1)[1].split("\n### ", 1)[0]
        assert section.startswith(f"{claim['verdict']['zh']}\n\n{claim['statement']['zh']}\n"), claim["id"]
        assert f"- 检验: {claim['how']['zh']}" in section, claim["id"]
        if claim["counterexample"]:
            assert f"- 反例或说明: {claim['counterexample']['zh']}" in section, claim["id"]


def test_claims_and_checks_of_flags_are_two_numbers(whole_ledger):
    document = schema.document(whole_ledger)
    said = summary(document)
    assert said.startswith(f"{len(document['claims'])} claims: ")
    assert f"; {len(document['flags'])} flag checks: " in said and said.endswith("all as expected.")
