"""The ledger as a page."""

from whorl.claims import schema
from whorl.claims.report import markdown, short, summary


def test_the_page_holds_every_claim_in_both_languages(whole_ledger):
    document = schema.document(whole_ledger)
    page = markdown(document)
    assert page.startswith("# The ledger of claims\n\n") and summary(document) in page
    for claim in document["claims"]:
        assert (
            f"### {claim['id']}: {claim['verdict']}\n\n{claim['statement']['en']}\n\n{claim['statement']['zh']}\n"
            in page
        )
    assert short(-0.0001234) == "-0.00012"
