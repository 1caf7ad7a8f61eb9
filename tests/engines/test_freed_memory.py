"""Memory that a step frees is there for the next step."""

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest
from torch import nn

from fedfew.engines import LocalTraining, Threaded, freed_memory

# In a separate process, for what lies at the end of the heap decides what can be returned; without torch, which loads slowly.
STEPS = """
import ctypes, importlib.util, resource, sys
spec = importlib.util.spec_from_file_location("memory", sys.argv[1])
memory = importlib.util.module_from_spec(spec)
spec.loader.exec_module(memory)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def faults():
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [libc.malloc(20 * 2**20) for _ in range(3)]
        for block in blocks:
            ctypes.memset(block, 1, 20 * 2**20)
        for block in blocks:
            libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
memory.keep_freed()
print(before, faults())
"""


@pytest.fixture
def calls(monkeypatch):
    """What the C library's mallopt is called with."""
    for name in freed_memory.USERS_OWN:
        monkeypatch.delenv(name, raising=False)
    found = []
    library = SimpleNamespace(mallopt=lambda *arguments: found.append(arguments))
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(freed_memory.sys, "platform", "linux")
    return found


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="only the GNU C library has the setting"
)
def test_a_step_reuses_what_the_one_before_freed(monkeypatch):
    """The third of three steps that write 60 MiB, 15,360 pages of 4 KiB."""
    for name in freed_memory.USERS_OWN:
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run([sys.executable, "-c", STEPS, freed_memory.__file__], capture_output=True, text=True, check=True)
    before, after = (int(number) for number in done.stdout.split())
    assert before > 5000
    assert after < 500


def test_the_threaded_engine_keeps_memory(calls):
    Threaded(nn.Linear(2, 2), LocalTraining(lr=0.1, batch_size=5), seed=0)
    assert calls == [(-3, 32 * 2**20), (-1, 256 * 2**20)]


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_a_setting_in_the_environment_stays(monkeypatch, calls, name):
    monkeypatch.setenv(name, "1")
    freed_memory.keep_freed()
    assert calls == []


def test_other_systems_are_left_as_they_are(monkeypatch, calls):
    monkeypatch.setattr(freed_memory.sys, "platform", "darwin")
    freed_memory.keep_freed()
    assert calls == []


def test_a_c_library_without_the_setting_is_left_as_it_is(monkeypatch, calls):
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: object())
    freed_memory.keep_freed()
    assert calls == []
