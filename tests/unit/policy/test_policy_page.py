"""The tables of docs/policy.md, computed again by the code that they explain."""

from dataclasses import replace

from agentzip.policy.candidates import Group, consider
from agentzip.policy.planner import PlannerState, plan, wake_cost_s
from agentzip.policy.prices import PAGE_BYTES, Prices
from source_tree import ROOT
from unit.policy.situations import HOST, PART, RULES, SANDBOX

PAGE = (ROOT / "docs" / "policy.md").read_text().splitlines()
TARGETS_MS = (1, 5, 10, 20, 40, 100)


def table(*rows: tuple[str, ...]) -> list[str]:
    """Rows as Markdown has them."""
    return [f"| {' | '.join(row)} |" for row in rows]


def mib(size: float) -> str:
    """Bytes in MiB."""
    return f"{size / (1 << 20):.1f} MiB"


def _break_even_s(group: Group) -> float:
    return group.rest_s * group.worth.cost / group.worth.gain


def decision() -> list[str]:
    """What the planner weighs for the sandbox of the page, step by step."""
    prices = Prices.of(HOST, RULES.watermarks, reclaiming=True)
    groups, _ = consider(SANDBOX, prices, "", RULES)
    rest, working = groups
    (out,) = plan([SANDBOX], HOST, RULES, PlannerState()).page_outs
    taken = PART.working_set_pages - out.keep_pages
    wake_ms = wake_cost_s(taken, SANDBOX.announced, RULES.costs) * 1000

    def each(what: str, name: str) -> tuple[str, ...]:
        return (what, *(f"{getattr(group.worth, name):,.0f}" for group in groups))

    def pages(group: Group) -> str:
        return f"{group.pages:,} of {(PART.rest_pages, PART.working_set_pages)[group is working]:,}"

    rows = table(
        ("pages that may leave", pages(rest), pages(working)),
        each("saved bytes a page", "saved_bytes"),
        each(f"**gain**: saved x {rest.rest_s:.0f} s x {prices.memory:.2f}", "gain"),
        each("encoding", "encode_cost"),
        each("processor time of the wake", "restore_cost"),
        each("delay of the wake", "delay_cost"),
        each("**cost**", "cost"),
        ("pays from a wait of", *(f"{_break_even_s(group):.1f} s" for group in groups)),
        ("leave", *("yes" if group.worth.pays else "no" for group in groups)),
    )
    rows.append(
        f"{out.pages:,} pages leave, {out.keep_pages:,} of the working set stay, "
        f"and the wake is expected to take {wake_ms:.0f} ms."
    )
    return [*rows, f"> {out.reason}"]


def prices_of_the_decision() -> list[str]:
    """What things are worth on the host of the page."""
    prices = Prices.of(HOST, RULES.watermarks, reclaiming=True)
    return table(
        ("memory", f"{prices.memory:.2f}", "a byte-second"),
        ("a processor second", f"{prices.processor / (1 << 30):.2f} GiB s", "byte-seconds"),
        ("a second of delay", f"{prices.delay / (1 << 30):.2f} GiB s", "byte-seconds"),
    )


def knob() -> list[str]:
    """What stays and what is saved, by the latency target."""
    rows = []
    for target_ms in TARGETS_MS:
        sandbox = replace(SANDBOX, latency_target_s=target_ms / 1000)
        (out,) = plan([sandbox], HOST, RULES, PlannerState()).page_outs
        saved = out.pages * PAGE_BYTES * (1 - 1 / PART.ratio)
        left = PART.working_set_pages - out.keep_pages
        wake_ms = wake_cost_s(left, SANDBOX.announced, RULES.costs) * 1000
        rows.append((f"{target_ms} ms", f"{out.keep_pages:,}", mib(saved), f"{wake_ms:.1f} ms"))
    return table(*rows)


def test_the_decision_on_the_page_is_the_one_that_the_code_makes() -> None:
    """Every row, and the sentence that `agentzip explain` prints."""
    assert [] == [line for line in decision() if line not in PAGE]


def test_the_prices_on_the_page_are_those_of_the_code() -> None:
    """On the host that the page describes."""
    assert [] == [line for line in prices_of_the_decision() if line not in PAGE]


def test_the_knob_on_the_page_is_the_one_of_the_code() -> None:
    """Each latency target with what it saves."""
    assert [] == [line for line in knob() if line not in PAGE]
