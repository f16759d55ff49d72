"""
Workload A: a data analysis that goes on over many turns, with pandas, scikit-learn, matplotlib.

Each turn takes one category of its orders, writes it out and reads it back, learns two models on
it, draws, and notes what it found; see turns.py for the lines and python_agent.py for the data.

    python -m agentzip.workloads.analyst FOLDER
"""

import io
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sklearn.cluster import KMeans
from sklearn.ensemble import RandomForestRegressor

from agentzip.workloads.python_agent import LIBRARIES, DataAgent
from agentzip.workloads.serve import digest_of, say
from agentzip.workloads.toolbox import import_toolbox
from agentzip.workloads.turns import Checks, serve_turns

__all__ = ["Analyst", "main"]

_MORE_LIBRARIES = (
    *("matplotlib.pyplot", "matplotlib.image", "sklearn.linear_model", "sklearn.model_selection"),
    *(
        "sklearn.preprocessing",
        "sklearn.pipeline",
        "sklearn.metrics",
        "scipy.stats",
        "scipy.signal",
    ),
)

_NUMBERS = ("order_id", "customer_id", "price", "quantity", "total", "spent")
"""Columns of numbers that every turn looks at."""

_ROWS_MAX = 6_000
"""Rows of a category that a turn works on: some tenths of a second of processor time."""

_CHART_TURNS = 3
"""A picture every so many turns."""

_CHARTS_KEPT = 6
"""Older ones are thrown away, as notebooks' outputs are."""


class Analyst(DataAgent):
    """The analysis so far: data, models, pictures, notes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.categories = sorted(self.by_day.columns)
        self.history: list[str] = []
        self.charts: list[bytes] = []
        self.centres = np.zeros((0, self.features.shape[1]))

    def recall(self) -> str:
        """
        The notes, what was printed and mailed, numbers, records, the last model.

        It reads much and computes little: what it takes is what memory takes to come home.
        """
        return digest_of(self._needed())

    def _needed(self) -> Iterator[bytes]:
        for text in (*self.history, *self.printed, *self.mails):
            yield text.encode()
        for name in _NUMBERS:
            yield self.merged[name].to_numpy().tobytes()
        for array in (self.totals, self.features, self.centres):
            yield array.tobytes()
        yield str(sum(record["quantity"] for record in self.records)).encode()
        yield str(sum(map(len, self.notes.values()))).encode()

    def work(self, number: int, choice: int) -> dict[str, object]:
        """Fetch, compute, write; each result is checked against another way to it."""
        checks, chance = Checks(), random.Random(choice)  # noqa: S311
        category = chance.choice(self.categories)
        part = self.merged[self.merged["category"] == category].head(_ROWS_MAX)
        rows = part.index.to_numpy()
        self._write_and_read(part, checks)
        score = self._learn(rows, choice, checks)
        if number % _CHART_TURNS == 0:
            self._draw(part, checks)
        cities = part.groupby("city")["total"].sum().sort_values(ascending=False)
        checks.that("cities", bool(np.isclose(cities.sum(), part["total"].sum())))
        self.totals[rows] = self.orders["total"].to_numpy(dtype=float)[rows] * (1 + number)
        for order in part["order_id"].tolist():
            self.notes[order] = f"{number}: {category}"
        self.history.append(f"turn {number}: {category}\n{part.describe().to_string()}\n{cities}")
        return {"category": category, "rows": len(part), "score": score, "wrong": checks.wrong}

    def _write_and_read(self, part: Any, checks: Checks) -> None:
        again = pd.read_csv(io.StringIO(part.to_csv(index=False)))
        checks.that("read back: rows", len(again) == len(part))
        checks.that("read back: orders", again["order_id"].tolist() == part["order_id"].tolist())
        checks.that("read back: total", bool(np.isclose(again["total"].sum(), part["total"].sum())))

    def _learn(self, rows: Any, choice: int, checks: Checks) -> float:
        """A forest for the totals and clusters of the orders; what the forest explains of them."""
        data, wanted = self.features[rows], self.orders["total"].to_numpy(dtype=float)[rows]
        forest = RandomForestRegressor(n_estimators=6, max_depth=7, random_state=choice)
        predicted = forest.fit(data, wanted).predict(data)
        trees = np.mean([tree.predict(data) for tree in forest.estimators_], axis=0)
        checks.that("forest", bool(np.allclose(predicted, trees)))
        clusters = KMeans(n_clusters=6, n_init=1, random_state=choice).fit(data)
        near = ((data - clusters.cluster_centers_[clusters.labels_]) ** 2).sum()
        checks.that("clusters", bool(np.isclose(near, clusters.inertia_)))
        self.centres = clusters.cluster_centers_
        return float(np.round(forest.score(data, wanted), 9))

    def _draw(self, part: Any, checks: Checks) -> None:
        figure = Figure(figsize=(6, 4))
        canvas: Any = FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.scatter(part["price"], part["total"], s=3)
        axes.set_title(str(part["category"].iloc[0]))
        picture = io.BytesIO()
        canvas.print_png(picture, metadata={"Software": None})
        self.charts = [*self.charts, picture.getvalue()][-_CHARTS_KEPT:]
        drawn = np.asarray(canvas.buffer_rgba())
        checks.that("picture", drawn.shape == (400, 600, 4) and bool((drawn[..., :3] < 128).any()))

    def digest(self) -> str:
        """Everything of the data agent, and what the turns added."""
        texts = (text.encode() for text in self.history)
        return digest_of([super().digest().encode(), *texts, *self.charts, self.centres.tobytes()])


def main(arguments: list[str] | None = None) -> None:
    """Load, say so, and wait."""
    folder = Path((sys.argv[1:] if arguments is None else arguments)[0])
    import_toolbox(*LIBRARIES, *_MORE_LIBRARIES)
    state = Analyst(folder)
    say({"ready": True})
    serve_turns(state)


if __name__ == "__main__":
    main()
