"""
Mappings of hugetlbfs, whose pages are not of the base size: left alone, whatever is around them.
"""

import mmap
import sys

import pytest

from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(60)]

_MAP_HUGETLB = 0x40000
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_HUGETLB

_HOLDER = f"""
import mmap, sys
huge = mmap.mmap(-1, 2 << 20, {_FLAGS})
huge[:] = bytes(range(256)) * 8192
small = bytes(range(256)) * 32768
print("ready 0", flush=True)
for line in sys.stdin:
    print("ok", huge[:] == bytes(range(256)) * 8192 == small[: 2 << 20], flush=True)
"""


def test_a_mapping_of_huge_pages_stays_and_its_neighbours_leave() -> None:
    """And it is told why."""
    try:
        mmap.mmap(-1, 2 << 20, _FLAGS).close()
    except OSError as error:
        pytest.skip(f"this host has no huge page to spare (vm.nr_hugepages): {error}")
    with Stage() as stage, Target([sys.executable, "-c", _HOLDER], verify="verify") as target:
        stage.attach(target, "always")
        assert stage.page_out(target).pages_moved > 1000
        regions = stage.engine.regions(target.pid)
        (huge,) = (region for region in regions if "hugepage" in region.name)
        assert not huge.movable
        assert 0 == huge.out_bytes
        assert "True" == target.verify()
        stage.settle()
