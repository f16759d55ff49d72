"""
A data agent's Python tool between two calls: frames, arrays, records, printed results.

    python -m agentzip.workloads.python_agent FOLDER
"""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from agentzip.workloads.serve import digest_of, say, serve
from agentzip.workloads.toolbox import import_toolbox

__all__ = ["LIBRARIES", "DataAgent", "main"]

LIBRARIES = (
    *("numpy.polynomial", "numpy.ma", "numpy.random", "numpy.testing", "numpy.f2py"),
    *("pandas.io.formats.style", "pandas.testing", "pandas.plotting", "pandas.tseries.api"),
)
"""What a data agent has imported beside its toolbox."""

_RECORDS = 9_000
_TOUCHED_ROWS = 1_500
"""Rows that one step changes."""


_DIGEST_ROWS = 2_000
"""Rows digested at a time."""


class DataAgent:
    """What the agent has loaded and computed so far."""

    def __init__(self, folder: Path) -> None:
        text = (folder / "orders.csv").read_text()
        self.mails = (folder / "mails.txt").read_text().split("\n\x0c\n")
        self.raw = pd.read_csv(io.StringIO(text))
        orders = self.raw.drop_duplicates("order_id").dropna(subset=["price"])
        orders = orders.reset_index(drop=True)
        orders["ordered_at"] = pd.to_datetime(orders["ordered_at"], utc=True)
        orders["note"] = orders["note"].fillna("")
        orders["total"] = (orders["price"] * orders["quantity"] * (1 - orders["discount"])).round(2)
        self.orders = orders
        self.customers = (
            orders.groupby("customer_id")
            .agg(spent=("total", "sum"), count=("total", "size"), last=("ordered_at", "max"))
            .reset_index()
        )
        self.merged = orders.merge(self.customers, on="customer_id", how="left")
        self.by_day = orders.pivot_table(
            index=orders["ordered_at"].dt.date,
            columns="category",
            values="total",
            aggfunc="sum",
            fill_value=0.0,
        )
        self.records = orders.head(_RECORDS).to_dict("records")
        self.notes = dict(
            zip(orders["order_id"].tolist(), orders["note"].astype(object).tolist(), strict=True)
        )
        self.totals = orders["total"].to_numpy(dtype=float).copy()
        self.features = self._features()
        self.groups = self._groups()
        self.printed = [
            part.describe().to_string() for _, part in self.orders.groupby("category")
        ] + [self.by_day.head(120).to_string(), self.customers.head(400).to_string()]

    def _features(self) -> Any:
        """One row of numbers an order, standardised, as models want them."""
        orders = self.orders
        columns = [
            np.log1p(orders["price"].to_numpy(dtype=float)),
            orders["quantity"].to_numpy(dtype=float),
            orders["ordered_at"].dt.hour.to_numpy(dtype=float),
            orders["ordered_at"].dt.day_of_week.to_numpy(dtype=float),
            orders["category"].astype("category").cat.codes.to_numpy(dtype=float),
            orders["city"].astype("category").cat.codes.to_numpy(dtype=float),
        ]
        matrix = np.column_stack(columns)
        return (matrix - matrix.mean(axis=0)) / (matrix.std(axis=0) + 1e-9)

    def _groups(self) -> Any:
        """A few rounds of k-means over the features; what remains is the label of each order."""
        centres = self.features[:: max(1, len(self.features) // 8)][:8].copy()
        labels = np.zeros(len(self.features), dtype=np.int64)
        for _ in range(4):
            distances = ((self.features[:, None, :] - centres[None]) ** 2).sum(axis=2)
            labels = distances.argmin(axis=1)
            for label in range(len(centres)):
                if (labels == label).any():
                    centres[label] = self.features[labels == label].mean(axis=0)
        return labels

    def step(self, number: int) -> dict[str, object]:
        """A filter, a group, look-ups; totals, notes and records of some orders change."""
        categories = sorted(self.by_day.columns)
        wanted = categories[number % len(categories)]
        part = self.merged[self.merged["category"] == wanted]
        cities = part.groupby("city")["total"].sum().sort_values(ascending=False)
        first = (number * 7_919) % max(1, len(self.totals) - _TOUCHED_ROWS)
        # Each change is its own inverse; see serve.py.
        self.totals[first : first + _TOUCHED_ROWS] *= -1.0
        for order in self.orders["order_id"].iloc[first : first + _TOUCHED_ROWS].tolist():
            self.notes[order] = self.notes[order][::-1]
        chosen = self.records[number % 50 :: 50]
        for record in chosen:
            record["channel"] = record["channel"][::-1]
            record["quantity"] = -record["quantity"]
        mail = self.mails[number % len(self.mails)]
        return {
            "category": wanted,
            "rows": len(part),
            "best_city": str(cities.index[0]) if len(cities) else "",
            "changed": _TOUCHED_ROWS + len(chosen),
            "words": len(mail.split()),
        }

    def digest(self) -> str:
        """Every frame, array, dictionary and text."""
        return digest_of(self._parts())

    def _parts(self) -> Iterator[bytes]:
        for frame in (self.raw, self.orders, self.customers, self.merged, self.by_day):
            for name in frame.columns:
                yield from _column_parts(frame[name])
        for array in (self.totals, self.features, self.groups):
            yield np.ascontiguousarray(array).tobytes()
        for order, note in self.notes.items():
            yield f"{order}={note}".encode()
        for record in self.records:
            yield repr(record).encode()
        for text in self.mails + self.printed:
            yield text.encode()


def _column_parts(column: Any) -> Iterator[bytes]:
    """
    The values of a column, in small pieces.

    Not pandas' own hashes: they would stay behind in freed memory, megabytes of random numbers.
    """
    for start in range(0, len(column), _DIGEST_ROWS):
        values = column.iloc[start : start + _DIGEST_ROWS].to_numpy()
        if values.dtype == object:
            yield "\x1e".join(map(str, values)).encode()
        else:
            yield values.tobytes()


def main(arguments: list[str] | None = None) -> None:
    """Load, say so, and wait."""
    folder = Path((sys.argv[1:] if arguments is None else arguments)[0])
    import_toolbox(*LIBRARIES)
    state = DataAgent(folder)
    say({"ready": True})
    serve(state)


if __name__ == "__main__":
    main()
