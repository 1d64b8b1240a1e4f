"""``python -m traceml_lite`` is the command line."""

from traceml_lite.cli import main

if __name__ == "__main__":
    main()
