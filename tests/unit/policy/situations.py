"""A host, a sandbox and a process that tests start from, and inputs nobody thought of."""

from hypothesis import strategies as st

from agentzip.policy.planner import Host, Part, Rules, SandboxState
from agentzip.sandboxes import PHASES, WAITS

GIB = 1 << 30

HOST = Host(
    memory_bytes=16 * GIB,
    available_bytes=2 * GIB,
    pressure=0.0,
    cores=4,
    cpu_idle_share=0.6,
    pool_bytes=1 * GIB,
    pool_bytes_max=8 * GIB,
)
"""88 % of the memory is used, above the start watermark, and the processors have time."""

PART = Part(
    pid=1,
    working_set_pages=6_000,
    rest_pages=10_000,
    restless_pages=300,
    quiet_s=5.0,
    temperature="warm",
    clean_share=0.0,
    ratio=4.0,
    paged_out_s=None,
)

SANDBOX = SandboxState(
    name="a",
    phase="waiting_model",
    expected_rest_s=60.0,
    latency_target_s=0.02,
    announced=True,
    parts=(PART,),
    pages_out=0,
    pinned=False,
    min_wait_s=1.0,
    left_alone="",
)

RULES = Rules()
UNBOUNDED = Rules(pages_per_tick_max=10**9)

shares = st.floats(0, 1)
seconds = st.floats(0, 1e4)

# Most inputs let something leave, or most properties would hold of plans that do nothing.
hosts = st.builds(
    lambda memory, used, busy, **fixed: Host(
        memory_bytes=memory,
        available_bytes=round((1 - used) * memory),
        cpu_idle_share=1 - busy,
        **fixed,
    ),
    st.integers(GIB, 1 << 38),
    st.floats(0.86, 1) | shares,
    st.floats(0, 0.2) | shares,
    pressure=st.just(0.0) | shares,
    cores=st.integers(1, 64),
    pool_bytes=st.just(0) | st.integers(0, 8 * GIB),
    pool_bytes_max=st.just(8 * GIB) | st.integers(1, 8 * GIB),
)

parts = st.builds(
    Part,
    pid=st.integers(1, 4),
    working_set_pages=st.integers(0, 20_000),
    rest_pages=st.integers(0, 50_000),
    restless_pages=st.integers(0, 1000),
    quiet_s=st.sampled_from([20.0, 5.0, 0.0, 0.5, 500.0]),
    temperature=st.sampled_from(["warm", "cold", "cold", "hot"]),
    clean_share=shares,
    ratio=st.floats(2, 12) | st.floats(0.5, 2),
    paged_out_s=st.none() | seconds,
    working_set_out=st.just(0) | st.integers(0, 3000),
)


def sandboxes_of(**fixed: st.SearchStrategy[object]) -> st.SearchStrategy[list[SandboxState]]:
    """One to three sandboxes of different names."""
    fields: dict[str, st.SearchStrategy[object]] = {
        "name": st.sampled_from("abcdef"),
        "phase": st.sampled_from([*sorted(WAITS), *PHASES]),
        "expected_rest_s": seconds,
        "latency_target_s": st.floats(0.001, 0.5),
        "announced": st.booleans(),
        "parts": st.lists(parts, min_size=1, max_size=2, unique_by=lambda part: part.pid).map(
            tuple
        ),
        "pages_out": st.just(0) | st.integers(0, 50_000),
        "pinned": st.sampled_from([False, False, False, True]),
        "min_wait_s": st.just(0.0) | st.floats(0, 100),
        "left_alone": st.sampled_from(["", "", "", "ratio 1.2"]),
        "phase_age_s": seconds,
        "notice_s": st.just(0.0) | st.floats(0, 2),
    }
    one = st.builds(SandboxState, **(fields | fixed))
    return st.lists(one, min_size=1, max_size=3, unique_by=lambda sandbox: sandbox.name)
