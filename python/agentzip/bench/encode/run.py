"""
The run: for each workload a crew, for each encoding its turn on that crew.

The encodings with `uniform` have a crew of their own, because how a process was started cannot be
changed later; everything else is measured on the same live processes.
"""

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from agentzip.bench import zram
from agentzip.bench.encode.engine_way import EngineWay
from agentzip.bench.encode.kernel_ways import ksm_why_not, measure_ksm, measure_zram
from agentzip.bench.encode.plan import EncodePlan, Encoding
from agentzip.bench.encode.result import EncodeResult, EncodingResult, WorkloadResult
from agentzip.bench.encode.stage import Baseline, settled_digests
from agentzip.errors import NotEnoughMemory
from agentzip.host import memory
from agentzip.workloads.crew import Sandbox, crew, why_not

__all__ = ["run_encode"]

_SANDBOX_BYTES = {"python": 500 * 2**20, "json": 300 * 2**20, "node": 450 * 2**20}
_BROWSER_BYTES = 1200 * 2**20
"""Free memory asked for a sandbox of size 1.0: what it holds, its pages in the pool, its start."""

Tell = Callable[[str], None]


def run_encode(plan: EncodePlan, tell: Tell = lambda _: None) -> EncodeResult:
    """
    Measure everything; `tell` hears what is being done.

    Raises:
        NotEnoughMemory: the host has too little for so many sandboxes.
        AgentZipError: the host cannot run the pager, or a process of the bench failed.
    """
    result = EncodeResult(plan=asdict(plan), host=_host())
    began = time.monotonic()
    for kind in plan.workloads:
        if reason := why_not(kind):
            result.skipped[kind] = reason
            continue
        _check_memory(kind, plan)
        found = WorkloadResult(kind)
        result.workloads.append(found)
        encodings = plan.chosen()
        _measure_crew(found, plan, [one for one in encodings if not one.uniform], tell)
        _measure_crew(found, plan, [one for one in encodings if one.uniform], tell, uniform=True)
    result.host["load_after"] = os.getloadavg()[0]
    result.seconds = time.monotonic() - began
    return result


def _measure_crew(
    found: WorkloadResult,
    plan: EncodePlan,
    encodings: Sequence[Encoding],
    tell: Tell,
    *,
    uniform: bool = False,
) -> None:
    if not encodings:
        return
    folder = Path(tempfile.mkdtemp(prefix="agentzip-encode-"))
    merge = any(encoding.algorithm == "ksm" for encoding in encodings)
    tell(f"{found.kind}: starting {plan.sandboxes} sandboxes")
    try:
        with crew(
            found.kind, plan.sandboxes, folder, size=plan.size, uniform=uniform, merge=merge
        ) as sandboxes:
            digests = settled_digests(sandboxes)
            for encoding in encodings:
                tell(f"{found.kind}: {encoding.name}")
                outcome = _measure(encoding, sandboxes, digests, folder, plan)
                if isinstance(outcome, str):
                    found.skipped[encoding.name] = outcome
                else:
                    found.encodings.append(outcome)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(
    encoding: Encoding,
    sandboxes: Sequence[Sandbox],
    digests: list[str],
    folder: Path,
    plan: EncodePlan,
) -> EncodingResult | str:
    """One encoding on the crew; a text is the reason why it could not be measured."""
    if encoding.algorithm == "zram" and (reason := zram.why_not()):
        return reason
    if encoding.algorithm == "ksm" and (reason := ksm_why_not()):
        return reason
    if (encoding.peer or encoding.dictionary == "other") and len(sandboxes) < 2:
        return "needs two sandboxes"
    part = sandboxes[: encoding.sandboxes_max]
    baseline = Baseline.take(part, digests[: len(part)])
    if encoding.algorithm == "zram":
        return measure_zram(part, encoding.name, baseline, plan.steps)
    if encoding.algorithm == "ksm":
        return measure_ksm(part, encoding.name, baseline, plan.steps)
    return EngineWay(encoding, part, folder).measure(baseline, plan.steps)


def _check_memory(kind: str, plan: EncodePlan) -> None:
    wanted = int(plan.sandboxes * plan.size * _SANDBOX_BYTES.get(kind, _BROWSER_BYTES))
    available = memory.memory_available()
    if available < wanted:
        raise NotEnoughMemory(
            f"{plan.sandboxes} sandboxes of workload {kind} need {wanted >> 20} MiB of free "
            f"memory, the host has {available >> 20} MiB",
            "take fewer sandboxes",
        )


def _host() -> dict[str, object]:
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load_before": os.getloadavg()[0],
    }
