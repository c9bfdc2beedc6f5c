"""``python -m whorl``: the command line without its script."""

from whorl.cli import main

if __name__ == "__main__":
    main()
