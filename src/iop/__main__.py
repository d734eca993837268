"""``python -m iop`` is ``iop``."""

from iop.cli.main import main

if __name__ == "__main__":
    main()
