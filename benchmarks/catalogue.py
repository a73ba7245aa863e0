"""Made-up products for `python -m mural_tf catalogue`, and how fast their table is read.

    python -m benchmarks.catalogue --output=/tmp/shop --packages=data/emoji_packages
    python -m benchmarks.catalogue --output=/tmp/shop --packages=data/emoji_packages --read
    python -m mural_tf catalogue /tmp/shop/products.csv --images=/tmp/shop/photos --output=/tmp/shop/out --from=WORKDIR

A product is an emoji in one of the training styles of the emoji benchmark, as WebP, with its CLDR name in eight
languages as title: 5,000 products in 40,000 rows, a language each, in the order of a shop's export; UTF-8 with a byte
order mark, separated by semicolons. 3% of the rows are broken: a picture that is missing or damaged, no title, a
language that is none, bytes that are not UTF-8, a column too many, a quote that nothing closes. `--read` reads the
table and prints rows a second, what became of the rows, and how many pictures are stored.
"""

from __future__ import annotations

import csv
import io
import pathlib
import random
import tempfile
import time

from mural_tf import cli
from mural_tf.errors import UserError

LANGUAGES = ("en", "de", "fr", "ja", "ru", "pl", "tr", "sw")
BROKEN = 0.03
COLUMNS = ("sku", "foto", "sprache", "titel", "marke", "preis")
DELIMITER = ";"


def products(packages: pathlib.Path, count: int, seed: int) -> list[tuple[str, str, bytes, dict[str, str]]]:
    """Returns (number, brand, PNG of the drawing, language -> title) of products, in a random order."""
    from mural_tf.data.datasets.emoji import benchmark, drawings, names
    from mural_tf.data.datasets.emoji.npm_packages import fetch_packages

    tarballs = fetch_packages(benchmark.PACKAGES, packages, None, True)
    named = names.read_emoji_names(tarballs["cldr-annotations-full"], tarballs["cldr-annotations-derived-full"])
    emoji = set.intersection(*(set(named[language]) for language in LANGUAGES))
    styles = [(style, tarballs[style.package]) for style in drawings.TRAINING_STYLES]
    drawn = drawings.draw_all(styles, emoji)
    found = [(style, key) for style in drawn for key in sorted(drawn[style])]
    random.Random(seed).shuffle(found)
    if len(found) < count:
        raise UserError(
            f"--count={count}: there are {len(found)} drawings with a name in all {len(LANGUAGES)} languages."
        )
    titles = {key: {language: named[language][key].name for language in LANGUAGES} for _, key in found}
    return [(f"P{i:05d}", style, drawn[style][key], titles[key]) for i, (style, key) in enumerate(found[:count])]


def write_shop(folder: pathlib.Path, packages: pathlib.Path, count: int, seed: int = 0) -> pathlib.Path:
    """Writes pictures and table; returns the table."""
    from PIL import Image

    draw, photos = random.Random(seed), folder / "photos"
    photos.mkdir(parents=True, exist_ok=True)
    lines = [_line(COLUMNS)]
    for number, brand, png, titles in products(packages, count, seed):
        with Image.open(io.BytesIO(png)) as picture:
            picture.save(photos / f"{number}.webp", lossless=True)
        for language, title in titles.items():
            row = [number, f"{number}.webp", language, title, brand, f"{draw.randint(1, 99)},{draw.randint(0, 99):02d}"]
            lines.append(_broken(draw, photos, row) if draw.random() < BROKEN else _line(row))
    (folder / "products.csv").write_bytes(b"\xef\xbb\xbf" + b"".join(lines))
    return folder / "products.csv"


def _line(row) -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter=DELIMITER, lineterminator="\r\n").writerow(row)
    return text.getvalue().encode()


def _broken(draw: random.Random, photos: pathlib.Path, row: list[str]) -> bytes:
    """Returns a row with one of the faults of tables that are kept by hand."""
    fault = draw.randrange(7)
    if fault == 0:
        row[1] = f"missing-{row[1]}"
    elif fault == 1:
        row[1] = f"damaged-{row[1]}"
        (photos / row[1]).write_bytes((photos / row[1].removeprefix("damaged-")).read_bytes()[:60])
    elif fault == 2:
        row[3] = " "
    elif fault == 3:
        row[2] = "all languages"
    elif fault == 4:
        return _line(row).replace(row[3].encode(), b"\xff\xfe" + row[3].encode())
    elif fault == 5:
        row.append("and more")
    else:
        return _line(row).replace(b";" + row[3].encode(), b';"' + row[3].encode())
    return _line(row)


def measure_reading(table: pathlib.Path) -> list[str]:
    """Reads a table into a store, as the command does, and returns what is found, in lines."""
    from tqdm import tqdm

    from mural_tf.ingest.tables.catalogue import RowTally, Store, TableRequest, fill, understand

    started = time.perf_counter()
    understood = understand(TableRequest(str(table), images=str(table.parent / "photos")))
    looked = time.perf_counter()
    tally = RowTally()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(pathlib.Path(folder, "rows.sqlite"))
        fill(understood, store, tally, tqdm(disable=True))
        ((pictures,),) = store.select("SELECT count(*) FROM pictures")
        store.close()
    seconds = time.perf_counter() - looked
    rate = f"{tally.read:,} rows in {seconds:.1f} s: {tally.read / seconds:,.0f} rows a second"
    return [f"Understood in {looked - started:.1f} s; {rate}", f"{pictures:,} pictures stored", *tally.lines()]


def main(_) -> None:
    """Writes the shop if it is not there, and with --read reads it."""
    folder = pathlib.Path(FLAGS["output"])
    table = folder / "products.csv"
    if not table.is_file():
        write_shop(folder, pathlib.Path(FLAGS["packages"]), FLAGS["count"])
    print(table)
    if FLAGS["read"]:
        print("\n".join(measure_reading(table)))


if __name__ == "__main__":
    FLAGS = cli.define(
        output=(None, "Folder for pictures and table."),
        packages=("data/emoji_packages", "Folder of the emoji benchmark's packages."),
        count=(5000, "Products.", 1),
        read=(False, "Read the table and print rows a second."),
    )
    cli.run(main)
