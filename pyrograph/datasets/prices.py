"""What thirty people think fifty household goods cost, and what shops ask for them.

Crowdsourcing in one line: r_k = x_item(k) + b_worker(k) + noise, all in logarithms of US dollars,
because guesses of a price err by factors. Shops' prices are there to check the estimates with,
or to give away for a few control items.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.datasets.root import data_file, text_of
from pyrograph.datasets.rows import finite_number, named_rows
from pyrograph.errors import DataFormatError


@dataclass(frozen=True, eq=False)
class CrowdPrices:
    """Answers of workers about items, and the true value of every item.

    Shapes, for A answers, m items and J workers:
        worker, item: ``[A]`` who answered and about what. A pair may come several times: the
            same worker, asked again in another session.
        answer: ``[A]`` logarithm of the price estimated.
        truth: ``[m]`` logarithm of the geometric mean of the shops' prices.
        names, worker_names: m and J labels.

    Floating tensors have the default dtype.
    """

    worker: Tensor
    item: Tensor
    answer: Tensor
    truth: Tensor
    names: tuple[str, ...]
    worker_names: tuple[str, ...]

    @property
    def num_items(self) -> int:
        return len(self.names)

    @property
    def num_workers(self) -> int:
        return len(self.worker_names)


def crowd_prices() -> CrowdPrices:
    """4888 answers of 30 students about 50 products; 1453 of the 1500 pairs are filled.

    Source: T. Lew and E. Vul (University of California San Diego), "The price is right"; the
    items and the task are of the kind of PriceUCI (Liu, Ihler & Steyvers 2013).

    Raises:
        DataNotFound: ``$PYROGRAPH_DATA`` is not set or lacks ``crowd_prices``.
        DataFormatError: a column is missing, a price is not above zero, or an answer is about an
            unknown item.
    """
    items = _rows("items.csv", ("item", "name", "price_geomean"))
    answers = _rows("estimates.csv", ("worker", "item", "estimate"))
    item_id = {row["item"]: i for i, (_, row) in enumerate(items)}
    unknown = sorted({row["item"] for _, row in answers} - set(item_id))
    if unknown:
        raise DataFormatError(f"estimates.csv: item {unknown[0]} is not in items.csv.")
    worker_names = tuple(sorted({row["worker"] for _, row in answers}))
    worker_id = {name: j for j, name in enumerate(worker_names)}
    return CrowdPrices(
        worker=torch.tensor([worker_id[row["worker"]] for _, row in answers]),
        item=torch.tensor([item_id[row["item"]] for _, row in answers]),
        answer=_log_prices("estimate", answers),
        truth=_log_prices("price_geomean", items),
        names=tuple(row["name"] for _, row in items),
        worker_names=worker_names,
    )


def _rows(filename: str, columns: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    return list(named_rows(filename, text_of(data_file("crowd_prices", filename)), columns))


def _log_prices(column: str, rows: Sequence[tuple[str, dict[str, str]]]) -> Tensor:
    prices = []
    for line, row in rows:
        price = finite_number(line, column, row[column])
        if price <= 0:
            raise DataFormatError(f"{line}: the {column} {row[column]} is no price above 0.")
        prices.append(price)
    return torch.tensor(prices).log()
