"""
Whether a tenant can tell what another one holds, by the pool's growth and by the time of faults.

With `isolation: sandbox` every sandbox is a trust domain of its own (tests/unit/fleet/
test_registry.py); here are two such domains, and for comparison one that two tenants share.
"""

import math
import sys
from itertools import groupby

import pytest

from agentzip.pager import Pager
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(110)]

_PAGES = 512
"""Of each kind."""

_ROUNDS = 4
_TRIES = 3
_CHANCE = 1e-4
"""A busy host makes both kinds slow alike; all tries are below this by chance never in a life."""

_TENANT = """
import ctypes, mmap, random, sys, time
kinds, count = sys.argv[1].split(","), int(sys.argv[2])
memory = mmap.mmap(-1, len(kinds) * count * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at, kind in enumerate(kinds):
    for number in range(count):
        # Half noise, half of it again: pages as different as can be that cost alike to decode.
        noise = random.Random(f"{kind}-{number}").randbytes(2048)
        page = bytes(4096) if kind == "filled" else noise * 2
        memory[(at * count + number) * 4096 : (at * count + number + 1) * 4096] = page
print("ready 0", flush=True)
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
order = list(range(len(kinds) * count))
for line in sys.stdin:
    random.shuffle(order)
    clock, took = time.perf_counter_ns, [0] * len(order)
    for page in order:
        before = clock()
        memory[page * 4096]
        took[page] = clock() - before
    print(*took, flush=True)
"""
"""Holds pages of the kinds that it is told, and tells how long the first touch of each takes."""


class _Tenant(Target):
    """A process whose pages the test knows, `_PAGES` of each kind."""

    def __init__(self, *kinds: str) -> None:
        words = [sys.executable, "-c", _TENANT, ",".join(kinds), str(_PAGES)]
        super().__init__(words, verify="")
        self._start = int(self.read_line(20, "start"))
        self._kinds = kinds

    def place(self, kind: str) -> list[tuple[int, int]]:
        """Where the pages of a kind are."""
        start = self._start + self._kinds.index(kind) * _PAGES * 4096
        return [(start, start + _PAGES * 4096)]

    def touch(self) -> dict[str, list[int]]:
        """Nanoseconds of each first touch, by kind."""
        took = [int(word) for word in self.command("touch").split()]
        return {kind: took[at * _PAGES : (at + 1) * _PAGES] for at, kind in enumerate(self._kinds)}


def _growth(engine: Pager, tenant: _Tenant, domain: str) -> dict[str, int]:
    """Bytes by which the pool grows for each kind of page; the tenant is given back after."""
    engine.attach(tenant.pid, domain=domain)
    grown = {}
    for kind in ("held", "other"):
        before = engine.stats().pool_payload_bytes
        engine.page_out(tenant.pid, tenant.place(kind))
        grown[kind] = engine.stats().pool_payload_bytes - before
    assert engine.detach(tenant.pid).complete
    return grown


def test_the_pool_grows_by_as_much_whatever_the_neighbour_holds() -> None:
    """To the byte; only in a shared domain the pages of the other one cost nothing."""
    with Stage() as stage, _Tenant("held") as victim, _Tenant("held", "other") as attacker:
        engine = stage.open(algorithm="zstd")
        alone = _growth(engine, attacker, "b")
        engine.attach(victim.pid, domain="a")
        engine.page_out(victim.pid)

        assert alone == _growth(engine, attacker, "b")
        shared = _growth(engine, attacker, "a")
        assert alone["other"] == shared["other"]
        assert shared["held"] < alone["held"] / 100
        engine.detach(victim.pid)


def test_faults_take_as_long_whatever_the_neighbour_holds() -> None:
    """A rank test over thousands of faults, which does tell pages that need no decoding."""
    kinds = ("held", "other", "filled")
    with Stage() as stage, _Tenant("held") as victim, _Tenant(*kinds) as attacker:
        engine = stage.open(algorithm="zstd")
        engine.attach(victim.pid, domain="a")
        engine.page_out(victim.pid)
        engine.attach(attacker.pid, domain="b")
        told, blind = [], []
        for _ in range(_TRIES):
            took: dict[str, list[int]] = {kind: [] for kind in kinds}
            for _ in range(_ROUNDS):
                for kind in kinds:
                    engine.page_out(attacker.pid, attacker.place(kind))
                for kind, some in attacker.touch().items():
                    took[kind] += some
            told.append(_chance(took["held"], took["other"]))
            blind.append(_chance(took["held"], took["filled"]))
            if told[-1] > _CHANCE > blind[-1]:
                break
        print(f"held or not: p = {told}; filled or not: p = {blind}")

        assert max(told) > _CHANCE
        assert min(blind) < _CHANCE, "the test would not see a difference"
        for tenant in (victim, attacker):
            engine.detach(tenant.pid)


def _chance(one: list[int], other: list[int]) -> float:
    """How likely two samples of one distribution differ so much (Mann-Whitney, two-sided)."""
    ranked = sorted([(value, 0) for value in one] + [(value, 1) for value in other])
    rank, ranks, ties = 1, 0.0, 0
    for _, group in groupby(ranked, key=lambda pair: pair[0]):
        same = [kind for _, kind in group]
        ranks += same.count(0) * (rank + (len(same) - 1) / 2)
        ties += len(same) ** 3 - len(same)
        rank += len(same)
    n, m = len(one), len(other)
    excess = ranks - n * (n + m + 1) / 2
    variance = n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1)))
    return math.erfc(abs(excess) / math.sqrt(2 * variance))


def test_the_rank_test_is_one() -> None:
    """Equal samples are likely, shifted ones are not."""
    assert 1.0 == _chance([1, 2, 3, 4], [4, 3, 2, 1])
    assert _chance(list(range(100)), list(range(50, 150))) < 1e-9
    assert math.isclose(0.0765, _chance([1, 2, 3], [3, 4, 5]), abs_tol=1e-4)
