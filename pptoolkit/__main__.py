"""``python -m pptoolkit``: the command line."""

from pptoolkit.cli.main import main

if __name__ == "__main__":
    main()
