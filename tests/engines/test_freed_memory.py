"""Memory that a step frees is there for the next step."""

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest
from torch import nn

from fedfew import train
from fedfew.engines import LocalTraining, Stacked, Threaded, freed_memory
from tests.helpers import federation, linear

# In a separate process, for what lies at the end of the heap decides what can be returned; without torch, which loads slowly.
STEPS = """
import ctypes, importlib.util, resource, sys
spec = importlib.util.spec_from_file_location("memory", sys.argv[1])
memory = importlib.util.module_from_spec(spec)
spec.loader.exec_module(memory)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def faults(size):
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [libc.malloc(size) for _ in range(3)]
        for block in blocks:
            ctypes.memset(block, 1, size)
        for block in blocks:
            libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

small, large = 20 * 2**20, 100 * 2**20
print(faults(small))
memory.keep_freed()
print(faults(small), faults(large))
with memory.kept_in_a_run():
    print(faults(large))
print(faults(large))
"""


@pytest.fixture
def calls(monkeypatch):
    """What the C library's mallopt is called with."""
    for name in freed_memory.USERS_OWN:
        monkeypatch.delenv(name, raising=False)
    found = []
    library = SimpleNamespace(mallopt=lambda *arguments: found.append(arguments), malloc_trim=lambda pad: found.append("trimmed"))
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(freed_memory.sys, "platform", "linux")
    return found


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="only the GNU C library has the setting"
)
def test_a_step_reuses_what_the_one_before_freed(monkeypatch):
    """The third of three steps that write 60 MiB, 15,360 pages of 4 KiB, or 300 MiB."""
    for name in freed_memory.USERS_OWN:
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run([sys.executable, "-c", STEPS, freed_memory.__file__], capture_output=True, text=True, check=True)
    before, kept, large, in_a_run, after = (int(number) for number in done.stdout.split())
    assert min(before, large, after) > 5000
    assert max(kept, in_a_run) < 500


@pytest.mark.parametrize("engine", [Threaded, Stacked])
def test_fast_engines_keep_memory(calls, engine):
    engine(nn.Linear(2, 2), LocalTraining(lr=0.1, batch_size=5), seed=0)
    assert calls == [(-3, 32 * 2**20), (-1, 256 * 2**20)]


@pytest.mark.parametrize("engine", ["threaded", "sequential"])
def test_a_run_keeps_it_between_rounds_and_returns_it_in_the_end(calls, engine):
    seen = []
    data = federation()
    train(data, linear, "fedavg", rounds=2, engine=engine, on_round=lambda told: seen.append(list(calls)))
    begun = [(-4, 0), (-1, 2**31 - 1)]
    assert [told[-2:] for told in seen] == ([begun] * 2 if engine == "threaded" else [[]] * 2)
    assert calls[-3:] == ([(-4, 65536), (-1, 256 * 2**20), "trimmed"] if engine == "threaded" else [])


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES"])
def test_a_setting_in_the_environment_stays(monkeypatch, calls, name):
    monkeypatch.setenv(name, "1")
    freed_memory.keep_freed()
    with freed_memory.kept_in_a_run():
        pass
    assert calls == []


def test_other_systems_are_left_as_they_are(monkeypatch, calls):
    monkeypatch.setattr(freed_memory.sys, "platform", "darwin")
    freed_memory.keep_freed()
    with freed_memory.kept_in_a_run():
        pass
    assert calls == []


def test_a_c_library_without_the_setting_is_left_as_it_is(monkeypatch, calls):
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: object())
    freed_memory.keep_freed()
    with freed_memory.kept_in_a_run():
        pass
    assert calls == []
