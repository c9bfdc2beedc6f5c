"""``python -m whorl.cli``: the same as ``whorl``."""

from whorl.cli import main

if __name__ == "__main__":
    main()
