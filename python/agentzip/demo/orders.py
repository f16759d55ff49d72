"""
The data of one demo agent: a CSV file of made-up orders.

Plausible where it matters for compression: a few customers order most (Pareto), prices spread as
prices do (log-normal), times move forward, notes are sentences of everyday words.  The same seed
makes the same file.  Runs as a process of its own, so that the demo itself stays small:

    python -m agentzip.demo.orders --seed 1 --rows 1000 --out orders.csv
"""

import argparse
import csv
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

__all__ = ["COLUMNS", "main", "rows"]

COLUMNS = [
    *("order_id", "customer_id", "ordered_at", "category", "price"),
    *("quantity", "city", "mail", "note"),
]

_CUSTOMERS = 20_000

_CATEGORIES = {
    "books": 14,
    "garden": 12,
    "kitchen": 30,
    "music": 18,
    "office": 22,
    "sports": 45,
    "tools": 60,
    "toys": 25,
}
"""Category -> typical price."""

_CITIES = (
    *("Aarhus", "Bergen", "Bologna", "Bremen", "Cork", "Gdansk", "Ghent", "Graz", "Leeds"),
    *("Lyon", "Malmo", "Porto", "Split", "Tampere", "Turin", "Utrecht", "Valencia", "Zagreb"),
)

_FIRST_NAMES = (
    *("alma", "boris", "carla", "dario", "elin", "farid", "greta", "hugo", "ines", "jonas"),
    *("kaja", "leon", "mira", "nils", "olga", "pavel", "rosa", "sami", "tove", "yusuf"),
)

_LAST_NAMES = (
    *("adler", "berg", "costa", "dahl", "engel", "fischer", "garcia", "horvat", "ivanov"),
    *("jansen", "keller", "lind", "moreau", "novak", "olsen", "peters", "rossi", "silva"),
)

_WORDS = (
    *("please", "deliver", "the", "parcel", "before", "noon", "and", "ring", "twice"),
    *("because", "our", "bell", "is", "weak", "leave", "it", "with", "a", "neighbour", "if"),
    *("nobody", "opens", "last", "time", "one", "box", "arrived", "wet", "so", "wrap", "this"),
    *("order", "well", "thanks", "for", "quick", "help", "we", "need", "an", "invoice", "in"),
    *("two", "copies", "gift", "paper", "would", "be", "nice", "but", "not", "red", "call"),
    *("me", "when", "something", "missing", "or", "late", "customer", "asked", "about"),
    *("return", "policy", "colour", "of", "handle", "second", "item", "was", "out", "stock"),
    *("replaced", "by", "similar", "model", "price", "difference", "refunded", "on", "card"),
    *("careful", "glass", "inside", "heavy", "use", "side", "entrance", "code", "changed"),
    *("since", "march", "new", "address", "valid", "from", "next", "week", "support"),
    *("promised", "free", "shipping", "voucher", "did", "work", "at", "checkout", "try"),
    *("again"),
)


def rows(seed: int, count: int) -> Iterator[list[str]]:
    """
    Orders, one list of cells each, in the order of `COLUMNS`.

    Some cells are empty and one order in fifty comes twice: an agent has something to clean.

    Args:
        seed: What makes one agent's data different from another's.
        count: How many rows.
    """
    # A stream of its own and no security in it: the data must be the same at every run.
    chance = random.Random(seed)  # noqa: S311
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    categories = list(_CATEGORIES)
    made = 0
    while made < count:
        customer = int(chance.paretovariate(1.1)) % _CUSTOMERS
        moment += timedelta(seconds=chance.expovariate(1 / 90))
        category = chance.choice(categories)
        price = chance.lognormvariate(0, 0.6) * _CATEGORIES[category]
        first = _FIRST_NAMES[customer % len(_FIRST_NAMES)]
        last = _LAST_NAMES[customer // 7 % len(_LAST_NAMES)]
        row = [
            f"{seed:02d}-{made:08d}",
            str(customer),
            moment.isoformat(timespec="seconds"),
            category,
            "" if chance.random() < 0.02 else f"{price:.2f}",
            str(1 + int(chance.expovariate(1))),
            chance.choice(_CITIES),
            f"{first}.{last}{customer}@example.com",
            " ".join(chance.choices(_WORDS, k=chance.randint(4, 14))),
        ]
        for _ in range(2 if made % 50 == 7 and made + 1 < count else 1):
            yield row
            made += 1


def main(arguments: list[str] | None = None) -> None:
    """Write one file."""
    parser = argparse.ArgumentParser(prog="agentzip.demo.orders", description="Make a CSV file.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows(options.seed, options.rows))


if __name__ == "__main__":
    main()
