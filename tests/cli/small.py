"""A small run, and the program as a process of its own."""

from __future__ import annotations

import os
import sys

SMALL = ["--rounds", "2", "--clients", "4", "--device", "cpu", "--engine", "sequential"]
TINY = [*SMALL, "--sample", "160"]
PNG = b"\x89PNG"
PROGRAM = [sys.executable, "-c", "from fedfew.cli import main; main()"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}
