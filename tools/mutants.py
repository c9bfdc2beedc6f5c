"""Small changes of formulas, made from the syntax tree: what ``mutate.py`` runs the tests and the ledger against.

A formula function is a function of ``encodings/`` or ``rotary/`` that computes numbers. Left out are the files and
functions that only carry things about, and, inside a function, whatever checks or words a message.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

SOURCES = Path(__file__).parents[1] / "src" / "whorl"

# Files without formulas: what carries parts about, keeps tables, reads configs.
CARRIERS = ("base.py", "parts.py", "combined.py", "layer_plan.py", "from_hf.py", "cache.py", "content.py", "none.py")

# Functions that check, build modules, keep results, say what is so, or serve a device that is not there.
NO_FORMULAS = (
    *("__init__", "_apply", "_restore", "replace", "claims", "declare", "reset_parameters", "extra_repr"),
    *("_ready_turn", "counted_tables", "_shared_tables", "_constants", "_frequencies_on", "by_tables", "_slopes_on"),
    *("need_base", "served", "_served", "length_dependent", "transposed", "causal_only", "chunk_rows", "_splits"),
)

# Calls that check or look up, or need a CUDA device; and those that do not care for the order of their arguments.
NOT_CHANGED = ("check", "_check", "invalid", "unknown", "isinstance", "type", "getattr", "value_of", "_ready_turn")
SYMMETRIC = ("max", "min", "maximum", "minimum", "promote_types")

SWAPPED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult}
ORDERED = (ast.Sub, ast.Div, ast.Pow, ast.FloorDiv, ast.Mod)
TERMS = (ast.Add, ast.Sub, ast.Mult, ast.Div)
COMPARED = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}


@dataclass(frozen=True)
class Mutant:
    """One change of one function; ``nth`` tells apart those that look alike on one line."""

    file: str
    function: str
    statement: int  # the line that the statement begins on
    line: int
    text: str
    kind: str
    old: str
    new: str
    nth: int = 0

    @property
    def key(self) -> str:
        """What names it in the record: a line that moves keeps its mutants."""
        return " | ".join((self.file, self.function, self.text, self.kind, f"{self.old} -> {self.new}", str(self.nth)))


def sample(count: int, seed: int) -> list[Mutant]:
    """So many of all mutants, by a hash of each, so that a change of one file keeps the choice in all others."""
    found = sorted(every(), key=lambda one: hashlib.sha256(f"{seed} {one.key}".encode()).digest())
    return found[:count]


def every() -> Iterator[Mutant]:
    """All mutants of all formula functions."""
    for path in sorted([*SOURCES.glob("encodings/*.py"), *SOURCES.glob("rotary/**/*.py")]):
        if path.name not in CARRIERS and not path.name.startswith("__"):
            yield from of_file(path)


def of_file(path: Path) -> Iterator[Mutant]:
    """The mutants of one file."""
    source = path.read_text()
    return (mutant for mutant, _ in _made(path, source, ast.parse(source)))


def code_of(mutant: Mutant) -> CodeType:
    """The changed code of the mutant's function."""
    path = SOURCES / mutant.file
    source = path.read_text()
    tree = ast.parse(source)
    for found, change in _made(path, source, tree):
        if found == mutant:
            return change(lambda: _inside(compile(tree, str(path), "exec", dont_inherit=True), mutant.function))
    raise KeyError(mutant.key)


def _made(path: Path, source: str, tree: ast.Module) -> Iterator[tuple[Mutant, Callable[..., CodeType]]]:
    """The mutants of a tree, each with what changes the tree while it is compiled."""
    file, lines = str(path.relative_to(SOURCES)), source.splitlines()
    for name, function in _functions(tree):
        seen: dict[tuple[object, ...], int] = {}
        for statement, holder, field, place, node in _formula_nodes(function, function.lineno):
            for kind, changed in _changes(node):
                line, old, new = node.lineno, ast.unparse(node), ast.unparse(changed)
                # without super() a method has another closure, and cannot be put in the place of the one with it
                if old == new or ("super()" in old) != ("super()" in new):
                    continue
                nth = seen[line, kind, old, new] = seen.get((line, kind, old, new), -1) + 1
                mutant = Mutant(file, name, statement, line, lines[line - 1].strip(), kind, old, new, nth)

                def change(
                    compiled: Callable[[], CodeType], at=(holder, field, place), new=changed, old=node
                ) -> CodeType:
                    _put(*at, ast.fix_missing_locations(ast.copy_location(copy.copy(new), old)))
                    try:
                        return compiled()
                    finally:
                        _put(*at, old)

                yield mutant, change


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The outermost functions and methods that hold formulas."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    places = [("", tree), *((f"{node.name}.", node) for node in classes)]
    for before, place in places:
        for node in place.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith(("check", "_check", *NO_FORMULAS)):
                yield before + node.name, node


def _formula_nodes(node: ast.AST, statement: int) -> Iterator[tuple[int, ast.AST, str, int | None, ast.expr]]:
    """The expressions below a node that compute something, each with the line of its statement and where it stands."""
    for field, value in ast.iter_fields(node):
        for place, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if not isinstance(child, ast.AST) or _says_or_checks(node, field, child):
                continue
            if isinstance(child, ast.expr):
                yield statement, node, field, place, child
            yield from _formula_nodes(child, child.lineno if isinstance(child, ast.stmt) else statement)


def _says_or_checks(holder: ast.AST, field: str, node: ast.AST) -> bool:
    """Whether a node is an annotation, a default, a docstring, a message or a check."""
    if field in ("annotation", "returns", "decorator_list", "args") and isinstance(holder, (ast.FunctionDef, ast.arg)):
        return True
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr)) or (isinstance(node, ast.AnnAssign) and not node.value):
        return True
    if isinstance(node, ast.If):
        return isinstance(node.body[-1], ast.Raise)
    if isinstance(node, ast.keyword):
        return node.arg in ("device", "dtype", "generator", "impl")
    if isinstance(node, ast.Call):
        return _name(node).startswith(NOT_CHANGED)
    return False


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _changes(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """What may be put in the place of an expression, each with the kind of the change."""
    if isinstance(node, ast.BinOp):
        left, right, op = node.left, node.right, type(node.op)
        if op in SWAPPED:
            yield "sign" if op in (ast.Add, ast.Sub) else "operator", ast.BinOp(left, SWAPPED[op](), right)
        if op in ORDERED:
            yield "swapped operands", ast.BinOp(right, node.op, left)
        if op in TERMS:
            yield "dropped term", left
            yield "dropped term", right
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "sign", node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        for by in (1, -1):
            yield "constant", ast.Constant(node.value + by)
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
        for op in COMPARED[type(node.ops[0])]:
            yield "comparison", ast.Compare(node.left, [op(), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.Call) and len(node.args) > 1 and _name(node) not in SYMMETRIC:
        first, second, *more = node.args
        if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
            yield "swapped arguments", ast.Call(node.func, [second, first, *more], node.keywords)
    elif isinstance(node, ast.Tuple) and len(node.elts) == 2 and isinstance(node.ctx, ast.Load):
        yield "swapped arguments", ast.Tuple(node.elts[::-1], node.ctx)


def _put(holder: ast.AST, field: str, place: int | None, node: ast.expr) -> None:
    if place is None:
        setattr(holder, field, node)
    else:
        getattr(holder, field)[place] = node


def _inside(code: CodeType, name: str) -> CodeType:
    """The code of a function or a method inside that of its module."""
    for part in name.split("."):
        code = next(one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == part)
    return code
