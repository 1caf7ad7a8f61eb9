"""``python -m fedfew`` is the program ``fedfew``."""

from fedfew.cli import main

main()
