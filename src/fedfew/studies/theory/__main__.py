"""``python -m fedfew.studies.theory [FOLDER]``."""

import sys
from pathlib import Path

from rich.console import Console

from fedfew.studies.theory import study

if __name__ == "__main__":
    sys.exit(0 if study(Path(sys.argv[1] if len(sys.argv) > 1 else "theory"), Console()) else 1)
