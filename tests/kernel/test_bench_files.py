"""The measurement of foreseen reads, in small."""

import pytest

from agentzip.bench.files import FilesPlan, run_files
from agentzip.errors import Unsupported
from agentzip.readahead import TraceSource

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(110)]


def test_offsets_foresee_what_the_order_of_files_cannot() -> None:
    """Files with random names in random order: only what goes on within a file is foreseen."""
    try:
        TraceSource().close()
    except Unsupported as error:
        pytest.skip(str(error))
    results = run_files(FilesPlan(files=24, rounds=1))
    found = {(result.order, result.level): result for result in results}

    assert 8 == len(results)
    assert 0.0 == found["random", "none"].hit_rate
    assert found["random", "offset"].hit_rate > found["random", "file"].hit_rate
    assert found["random", "offset"].hit_rate > 0.3
    assert {"tracepoints"} == {one.source for one in results if one.level != "none"}
    assert 1 == len({one.reads for one in results})
