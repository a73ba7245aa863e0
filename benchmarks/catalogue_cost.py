"""What `catalogue` costs on the ten rows of samples/shop: processor seconds, seconds and memory of five runs.

    python -m benchmarks.catalogue_cost workdirs/emoji FOLDER

The runs, each a process of its own: the first; nothing new; three other prices; three rows gone; ten more rows, whose
pictures are the first ten mirrored. FOLDER must not exist. The numbers are in docs/results/catalogue_cost.csv.
"""

from __future__ import annotations

import csv
import os
import pathlib
import shutil
import subprocess
import sys
import time

from PIL import Image, ImageOps

SHOP = pathlib.Path(__file__).resolve().parents[1] / "samples/shop"


def main(model: str, folder: str) -> None:
    """Copies the shop into a new folder, and prints a line for each of the five runs of a model there."""
    shop = pathlib.Path(folder)
    shutil.copytree(SHOP, shop)
    with (shop / "products.csv").open(encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file)
    products = [dict(zip(names, row)) for row in rows]
    cheaper = [{**product, "price": "1.00"} for product in products[:3]] + products[3:]
    situations = {
        "first run, ten rows": products,
        "nothing new": products,
        "three other prices": cheaper,
        "three rows gone": cheaper[:7],
        "ten more rows": cheaper[:7] + [_add_mirrored(shop, product) for product in products],
    }
    for situation, table in situations.items():
        with (shop / "products.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(table)
        arguments = [str(shop / "products.csv"), f"--output={shop}/out", f"--from={model}", "--train=no"]
        print(f"{situation:20}  {_measure([sys.executable, '-m', 'mural_tf', 'catalogue', *arguments])}", flush=True)


def _add_mirrored(shop: pathlib.Path, product: dict[str, str]) -> dict[str, str]:
    """Writes a product's picture mirrored, next to it; returns a row of the table for another product with it."""
    path = shop / product["image"]
    image = f"photos/mirrored_{path.name}"
    with Image.open(path) as picture:
        ImageOps.mirror(picture).save(shop / image)
    title = {name: f"{product[name]} 2" for name in ("title", "title_de")}
    return {**product, **title, "id": f"{product['id']}-2", "image": image}


def _measure(command: list[str]) -> str:
    """Runs a command; returns its processor seconds, elapsed seconds and peak memory as a text.

    This process ends with the command's messages if it fails.
    """
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    if status:
        sys.exit(errors.decode("utf-8", "replace"))
    processor = usage.ru_utime + usage.ru_stime
    return f"{processor:5.1f} processor seconds {seconds:6.1f} s {usage.ru_maxrss / 1e6:5.2f} GB"


if __name__ == "__main__":
    main(*sys.argv[1:])
