"""``whorl verify``: what it prints, how it ends, and that it takes an encoding of one's own."""

import json

import pytest

from whorl import registry
from whorl.cli.app import run
from whorl.cli.lists import complete_encoding

OWN = """
import whorl

class RootConfig(whorl.Config): name = "root"

@whorl.register
class Root(whorl.Encoding):
    Config = RootConfig
    claims = whorl.Claims(
        relative={relative}, norm_preserving=True, linear_attention=False, decays=True, extrapolates=False
    )

    def score_bias(self, q_positions, k_positions, length=None):
        return -(q_positions[..., None, :, None] - k_positions[..., None, None, :]).abs().sqrt()
"""


@pytest.fixture
def call(capsys, monkeypatch):
    """Runs the command in this process: (exit status, stdout, stderr)."""
    monkeypatch.setattr(registry, "ENCODINGS", dict(registry.ENCODINGS))

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(("verify", *arguments))
        return code, *capsys.readouterr()

    return call


def test_the_table_has_a_line_for_each_claim_and_a_summary(call):
    code, out, err = call("none", "window")
    lines = out.splitlines()
    assert code == 0 and err == "" and lines[0].split() == ["claim", "verdict", "numbers", "statement"]
    shown = [line.split()[0] for line in lines[1:-2]]
    assert {"none.equivariant", "none.cache", "window.reach", "window.flag.relative"} <= set(shown)
    flags = [id for id in shown if ".flag." in id or id.endswith((".cache", ".formula"))]
    assert lines[-1].startswith(f"{len(shown) - len(flags)} claims: ") and "all as expected" in lines[-1]
    assert f"; {len(flags)} flag checks: " in lines[-1]
    assert "holds within 1e-12" in out and "largest difference: " in out


def test_json_is_the_document(call, fits):
    code, out, _ = call("none", "--json")
    document = json.loads(out)
    assert code == 0 and fits(document)
    assert "none.equivariant" in {claim["id"] for claim in document["claims"]}
    assert "none.flag.decays" in {claim["id"] for claim in document["flags"]}


def test_reports_are_written(call, fits, tmp_path):
    page, data = tmp_path / "new" / "claims.md", tmp_path / "claims.json"
    assert call("none", "--report", str(page))[0] == 0 and call("none", "--report", str(data))[0] == 0
    assert "### none.equivariant: holds within 1e-12" in page.read_text() and "置换等变" in page.read_text()
    assert fits(json.loads(data.read_text()))


def test_in_chinese_table_and_report_are_chinese(call, tmp_path):
    page = tmp_path / "claims.md"
    code, out, _ = call("none", "--lang", "zh", "--report", str(page))
    assert code == 0 and out.splitlines()[0].split() == ["论断", "判定", "数值", "陈述"]
    assert "成立，误差不超过 1e-12" in out and "全部符合预期" in out
    assert "- 检验: 16 个词、2 个 8 维的头与一个随机次序，float64。" in page.read_text(encoding="utf-8")


def test_an_encoding_of_ones_own_is_read_from_a_file(call, tmp_path):
    honest, lying = tmp_path / "honest.py", tmp_path / "lying.py"
    honest.write_text(OWN.format(relative=True))
    lying.write_text(OWN.format(relative=False).replace('"root"', '"liar"'))
    code, out, _ = call(str(honest))
    assert code == 0 and "root.flag.decays" in out and "5 flag checks" in out
    code, out, _ = call(str(lying))
    assert code == 1 and "fails (expected: holds)" in out and "1 not as expected: liar.flag.relative." in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ropee"], "unknown encoding 'ropee'. Did you mean 'rope'?"),
        (["nowhere.py"], "verify: there is no file 'nowhere.py'."),
        (["none", "--lang", "fr"], "verify: unknown language 'fr'. Expected one of: en, zh."),
        (["none", "--report", "claims.txt"], "verify: --report must end in .md or .json, got 'claims.txt'."),
    ],
)
def test_misuse_is_one_line_and_ends_with_2(call, arguments, said):
    code, out, err = call(*arguments)
    assert (code, out) == (2, "") and err.startswith(said) and err.count("\n") == 1


def test_files_that_cannot_be_used_say_why(call, tmp_path):
    empty, broken = tmp_path / "empty.py", tmp_path / "broken.py"
    empty.write_text("x = 1\n")
    broken.write_text("1 / 0\n")
    assert "registers no encoding" in call(str(empty))[2]
    assert "cannot be run, ZeroDivisionError: division by zero" in call(str(broken))[2]
    code, _, err = call("none", "--report", str(tmp_path / "empty.py" / "claims.md"))
    assert code == 2 and "verify: cannot write" in err


def test_names_complete():
    assert complete_encoding("si") == ["sinks", "sinusoidal"]
