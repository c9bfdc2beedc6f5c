"""``whorl diff``: what positions do otherwise in two models, or in one as several programs read it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whorl.cli.options import Assume, Json, ModelFile
from whorl.cli.output import note, say, say_json, say_table, suggest, warnings_as_notes
from whorl.errors import WhorlError

if TYPE_CHECKING:
    from whorl.bridge.difference import Difference, GroupDifference, Turned


def diff(
    a: ModelFile,
    b: Annotated[str | None, typer.Argument(help="A second one; without it, --as names two programs or more.")] = None,
    programs: Annotated[
        str | None,
        typer.Option("--as", help="Programs that read: transformers4, transformers5, vllm, sglang, llama.cpp, mlx."),
    ] = None,
    length: Annotated[int | None, typer.Option(help="Positions to be served; else what the files claim.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the differences by position: .svg, .png or .pdf.")] = None,
    as_json: Json = False,
    assume: Assume = None,
) -> None:
    """What positions do otherwise in two models, or in one model as several programs read it.

    Exits 0 where all are equal, 1 where something differs, 2 where a file cannot be read.
    """
    from whorl.bridge.difference import diff as difference_of
    from whorl.dialects.detect import load_pipe
    from whorl.dialects.documents import PIPE

    if picture is not None:
        from whorl.plot.save_picture import check_path

        check_path(picture, "diff")
    pairs = _pairs(b, programs)
    source = load_pipe() if a == PIPE else a  # once, for every program is to read it
    found: list[Difference] = []
    refused: list[str] = []
    with warnings_as_notes():
        for second, pair in pairs:
            try:
                found.append(difference_of(source, second, programs=pair, length=length, assume=assume))
            except WhorlError as error:  # one program that cannot read the file does not silence the others
                refused.append(str(error))
    refused = list(dict.fromkeys(refused))
    if as_json:
        say_json({"equal": _equal(found, refused), "differences": [one.to_dict() for one in found], "refused": refused})
    else:
        for index, one in enumerate(found):
            say() if index else None
            _say(one)
    if picture is not None and found:
        from whorl.plot.difference_by_position import differences
        from whorl.plot.save_picture import save

        save(differences([(_brief(one), one) for one in found]), picture)
    for error in refused:
        note(error)
    if refused:
        raise typer.Exit(2)
    if not all(one.equal for one in found):
        suggest(f"whorl export {a} --for hf-both")
        raise typer.Exit(1)


def _equal(found: "list[Difference]", refused: list[str]) -> bool | None:
    """Whether all are equal; None where nothing differs and something could not be read."""
    if not all(one.equal for one in found):
        return False
    return None if refused else True


def _brief(one: "Difference") -> str:
    """The two that were compared, in few words: files without their folders, programs without the file."""
    return " / ".join(name.rpartition(" as ")[2] if " as " in name else Path(name).name for name in (one.a, one.b))


def _pairs(b: str | None, programs: str | None) -> list[tuple[str | None, tuple[str, ...] | None]]:
    """The second file and the two programs of each comparison: every program with the first."""
    names = tuple(name.strip() for name in (programs or "").split(",") if name.strip())
    if b is not None:
        if len(names) > 2:
            raise WhorlError(f"diff: two files and {len(names)} programs. Name one for both, or one for each.")
        return [(b, (names * 2)[:2] if names else None)]
    if len(names) < 2:
        raise WhorlError(
            "diff: one file needs two programs to differ in. Pass --as transformers5,vllm or another file."
        )
    return [(None, (names[0], name)) for name in names[1:]]


def _say(one: "Difference") -> None:
    say(f"{one.a} against {one.b}: {'equal' if one.equal else 'different'}")
    if not one.same_claim:
        say(f"claimed length {one.claimed_length[0]} against {one.claimed_length[1]}")
    for group in one.groups:
        _say_group(group)
    for text in one.notes:
        say(text)


def _say_group(group: "GroupDifference") -> None:
    count = "" if group.layers is None else f"{len(group.layers)} "
    say(f"{count}{group.kind}: {'equal' if group.equal else 'different'}")
    for one in group.settings:
        say(f"    {one.name}: {_short(one.a)} against {_short(one.b)}")
    shown = [one for one in group.rotations if not one.equal]
    for turned in shown:
        _say_rotation(turned, len(group.rotations) > 1)


def _say_rotation(turned: "Turned", named: bool) -> None:
    for name, factors in (("cos and sin", turned.attention_factor), ("the softmax scale", turned.softmax_factor)):
        if abs(factors[0] - factors[1]) > 1e-6 * max(factors):
            say(f"    factor on {name}: {factors[0]:.6g} against {factors[1]:.6g}")
    if named:
        say(f"    serving {turned.length} positions:")
    if turned.first_pair is None:
        say("    every pair turns alike")
        return
    first = f"    the first pair that differs is {turned.first_pair} of {min(turned.pairs)}"
    if turned.frequencies is not None:
        first += f": inverse frequency {turned.frequencies[0]:.6g} against {turned.frequencies[1]:.6g}"
    say(first)
    header = ("within positions", *(str(positions) for positions, _ in turned.cosines))
    row = ("    max |cos - cos|", *(f"{value:.2g}" for _, value in turned.cosines))
    say_table((f"    {header[0]}", *header[1:]), [row], right=header[1:])


def _short(value: object) -> str:
    from whorl.bridge.difference import in_words

    return f"{value:g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else in_words(value)
