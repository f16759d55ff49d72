"""
One data agent of the demo, an ordinary Python program that knows nothing of AgentZip.

It reads its CSV, cleans it, groups and merges, keeps frames, dictionaries and text alive as an
agent's Python tool does between two tool calls, and then waits on stdin for the model:

    tool N      one more tool call (question N), answered with its result and its time
    digest      a digest over the whole state
    quit        the end (so is the end of stdin)

Every answer is one JSON object on a line of stdout.
"""

import argparse
import ctypes
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["State", "main"]

_PR_SET_PDEATHSIG = 1

_LOOKUPS = 4000
"""Dictionary look-ups of one tool call: scattered reads, the worst case after a page out."""


class State:
    """Everything the agent keeps between two tool calls."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text()
        self.raw = pd.read_csv(path)
        self.orders = self._clean(self.raw)
        self.customers = self._group(self.orders)
        self.merged = self.orders.merge(self.customers, on="customer_id", how="left")
        self.by_day = self.orders.pivot_table(
            index=self.orders["ordered_at"].dt.date,
            columns="category",
            values="total",
            aggfunc="sum",
            fill_value=0.0,
        )
        self.notes = dict(
            zip(self.orders["order_id"].tolist(), self.orders["note"].tolist(), strict=True)
        )
        self.order_ids = self.orders["order_id"].tolist()
        self.baskets: dict[int, list[dict[str, object]]] = {}
        for customer, order, price, category in zip(
            self.orders["customer_id"].tolist(),
            self.order_ids,
            self.orders["price"].tolist(),
            self.orders["category"].tolist(),
            strict=True,
        ):
            basket = self.baskets.setdefault(customer, [])
            basket.append({"order": order, "price": price, "category": category})
        self.messages = [
            {"role": "tool" if turn % 2 else "assistant", "content": part}
            for turn, part in enumerate(
                self.text[start : start + 2000] for start in range(0, len(self.text) // 4, 2000)
            )
        ]
        self.similarity = self._similarity()

    @staticmethod
    def _clean(raw: Any) -> Any:
        orders = raw.drop_duplicates("order_id").dropna(subset=["price"]).reset_index(drop=True)
        orders["ordered_at"] = pd.to_datetime(orders["ordered_at"], utc=True)
        orders["mail"] = orders["mail"].str.lower()
        orders["total"] = orders["price"] * orders["quantity"]
        return orders

    @staticmethod
    def _group(orders: Any) -> Any:
        return (
            orders.groupby("customer_id")
            .agg(spent=("total", "sum"), count=("total", "size"), last=("ordered_at", "max"))
            .reset_index()
        )

    def _similarity(self) -> Any:
        """How much the days of the pivot table resemble each other, as an array of numbers."""
        days = self.by_day.to_numpy(dtype=float)
        norms = np.linalg.norm(days, axis=1, keepdims=True)
        return (days / np.maximum(norms, 1e-9)) @ (days / np.maximum(norms, 1e-9)).T

    def tool(self, question: int) -> dict[str, object]:
        """One tool call: a filter, a group, a merge and scattered look-ups."""
        categories = sorted(self.by_day.columns)
        wanted = categories[question % len(categories)]
        part = self.merged[self.merged["category"] == wanted]
        cities = part.groupby("city")["total"].sum().sort_values(ascending=False)
        step = max(1, len(self.order_ids) // _LOOKUPS)
        picked = self.order_ids[question % step :: step]
        late = sum("late" in self.notes[order] for order in picked)
        regulars = sum(len(self.baskets.get(customer, [])) for customer in range(200))
        return {
            "category": wanted,
            "rows": len(part),
            "best_city": str(cities.index[0]),
            "best_total": round(float(cities.iloc[0]), 2),
            "late": late,
            "regulars": regulars,
        }

    def digest(self) -> str:
        """A digest over every frame, array, dictionary and text."""
        hasher = hashlib.blake2b(digest_size=16)
        hasher.update(self.text.encode())
        for frame in (self.raw, self.orders, self.customers, self.merged, self.by_day):
            hasher.update(pd.util.hash_pandas_object(frame).to_numpy().tobytes())
        hasher.update(np.ascontiguousarray(self.similarity).tobytes())
        for order, note in self.notes.items():
            hasher.update(f"{order}={note}\n".encode())
        for customer, basket in self.baskets.items():
            hasher.update(f"{customer}:{basket}\n".encode())
        for message in self.messages:
            hasher.update(f"{message['role']}:{message['content']}\n".encode())
        return hasher.hexdigest()


def main(arguments: list[str] | None = None) -> None:
    """Be an agent until stdin ends."""
    parser = argparse.ArgumentParser(prog="agentzip.demo.agent", description="A data agent.")
    parser.add_argument("--seed", type=int, required=True, help="number of the agent")
    parser.add_argument("--csv", type=Path, required=True, help="its data")
    options = parser.parse_args(arguments)
    _end_with_parent()
    started = time.perf_counter()
    state = State(options.csv)
    _say({"ready": options.seed, "seconds": time.perf_counter() - started})
    # readline and not iteration: iterating a file reads ahead into a buffer of its own.
    while line := sys.stdin.readline():
        words = line.split()
        if not words or words[0] == "quit":
            break
        started = time.perf_counter()
        if words[0] == "tool":
            answer: dict[str, object] = {"answer": state.tool(int(words[1]))}
        elif words[0] == "digest":
            answer = {"digest": state.digest()}
        else:
            answer = {"error": f"no such command: {words[0]}"}
        _say({**answer, "seconds": time.perf_counter() - started})


def _end_with_parent() -> None:
    """Ask the kernel to end us when the demo dies, however it dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1:
        sys.exit("the demo is gone already")


def _say(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
