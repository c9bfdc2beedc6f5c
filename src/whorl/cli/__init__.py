"""The ``whorl`` command. This file imports nothing heavy: without the ``cli`` extra it must still be able to speak."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line; the console entry point."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        print(f'whorl: the command line is not installed ({error}). Run: pip install "whorl[cli]"', file=sys.stderr)
        raise SystemExit(2) from None
    from whorl.cli.app import run

    raise SystemExit(run())
