"""Triton's interpreter without work that it does again and again, or for nothing: what it computes stays the same."""

from dataclasses import replace
from functools import cache

from triton import language
from triton.runtime import interpreter

USED = ("_patch_lang", "_LangPatchScope", "_get_np_dtype", "interpreter_builder")  # other versions have other names


@cache
def _languages(function):
    """The modules of Triton's language that a kernel sees."""
    seen = function.__globals__.values()
    return [module for module in (language, language.core) if any(module is value for value in seen)]


def _once(patch):
    """As ``patch``, which puts the interpreter's functions into Triton's language, unless they are there.

    The interpreter does so for a launch, which takes them out again when it ends, and once more each time a kernel
    calls a function: that takes longer than most functions run.
    """

    def patch_once(function):
        modules = _languages(function)
        if modules and not any(language.core.is_builtin(module.load) for module in modules):
            return interpreter._LangPatchScope()
        return patch(function)

    return patch_once


def _by_name(find):
    """As ``find``, which makes a table of all dtypes at each call."""
    found = {}

    def find_once(kind):
        name = kind.scalar.name
        if name not in found:
            found[name] = find(kind)
        return found[name]

    return find_once


def spare():
    """Takes that work out of the interpreter, in this process."""
    if not all(hasattr(interpreter, name) for name in USED):
        return
    interpreter._patch_lang = _once(interpreter._patch_lang)
    interpreter._get_np_dtype = _by_name(interpreter._get_np_dtype)
    builder = interpreter.interpreter_builder
    if not builder.options.debug:  # then no one reads whether a sum of integers was too large
        builder.options = replace(builder.options, sanitize_overflow=False)
