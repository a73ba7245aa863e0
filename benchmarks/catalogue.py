"""Made-up products for `python -m mural_tf catalogue`, and how fast their table is read.

    python -m benchmarks.catalogue --output=/tmp/shop --packages=data/emoji_packages
    python -m mural_tf catalogue /tmp/shop/products.csv --images=/tmp/shop/photos --output=/tmp/shop/out --from=WORKDIR

A product is a drawing of the emoji benchmark as WebP, with its CLDR name in eight languages as title: 5,000 products in
40,000 rows, a language each, separated by semicolons. 3% of the rows are broken: a picture that is missing or damaged,
no title, a language that is none, bytes that are not UTF-8, a column too many, a quote that nothing closes. Prints rows
a second, what became of the rows, and how many pictures are stored.
"""

from __future__ import annotations

import csv
import io
import pathlib
import random
import tempfile
import time

from mural_tf import cli

LANGUAGES = ("en", "de", "fr", "ja", "ru", "pl", "tr", "sw")
BROKEN = 0.03
COLUMNS = ("sku", "foto", "sprache", "titel", "marke", "preis")


def write_shop(folder: pathlib.Path, packages: pathlib.Path, count: int, seed: int = 0) -> pathlib.Path:
    """Writes pictures and table; returns the table."""
    from PIL import Image

    from mural_tf.data.datasets.emoji import benchmark, names
    from mural_tf.data.datasets.emoji.npm_packages import fetch_packages

    tarballs = fetch_packages(benchmark.PACKAGES, packages)
    named = names.read_emoji_names(tarballs["cldr-annotations-full"], tarballs["cldr-annotations-derived-full"])
    emoji = set.intersection(*(set(named[language]) for language in LANGUAGES))
    drawn = benchmark.draw_all([(style, tarballs[style.package]) for style in benchmark.TRAINING_STYLES], emoji)
    draw, photos = random.Random(seed), folder / "photos"
    products = [(style, key) for style in drawn for key in sorted(drawn[style])]
    draw.shuffle(products)
    photos.mkdir(parents=True, exist_ok=True)
    lines = [_line(COLUMNS)]
    for number, (style, key) in enumerate(products[:count]):
        name = f"P{number:05d}"
        with Image.open(io.BytesIO(drawn[style][key])) as picture:
            picture.save(photos / f"{name}.webp", lossless=True)
        for language in LANGUAGES:
            row = [name, f"{name}.webp", language, named[language][key].name, style, f"{draw.randint(1, 99)},90"]
            lines.append(_broken(draw, photos, row) if draw.random() < BROKEN else _line(row))
    (folder / "products.csv").write_bytes(b"\xef\xbb\xbf" + b"".join(lines))  # UTF-8 as Excel writes it
    return folder / "products.csv"


def _line(row) -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter=";", lineterminator="\r\n").writerow(row)
    return text.getvalue().encode()


def _broken(draw: random.Random, photos: pathlib.Path, row: list[str]) -> bytes:
    """Returns a row with one of the faults of tables that are kept by hand."""
    damaged = f"damaged-{row[1]}"
    (photos / damaged).write_bytes((photos / row[1]).read_bytes()[:60])
    title = row[3].encode()
    return draw.choice([
        _line([row[0], f"missing-{row[1]}", *row[2:]]),
        _line([row[0], damaged, *row[2:]]),
        _line([*row[:3], " ", *row[4:]]),
        _line([*row[:2], "all languages", *row[3:]]),
        _line([*row, "and more"]),
        _line(row).replace(title, b"\xff\xfe" + title),
        _line(row).replace(b";" + title, b';"' + title),
    ])  # fmt: skip


def main(_) -> None:
    """Writes the shop if it is not there, and reads its table as the command does."""
    from tqdm import tqdm

    from mural_tf.ingest.tables.catalogue import RowTally, Store, TableRequest, fill, understand

    folder = pathlib.Path(FLAGS["output"])
    table = folder / "products.csv"
    if not table.is_file():
        write_shop(folder, pathlib.Path(FLAGS["packages"]), FLAGS["count"])
    print(table)
    started, tally = time.perf_counter(), RowTally()
    with tempfile.TemporaryDirectory() as temporary:
        store = Store(pathlib.Path(temporary, "rows.sqlite"))
        fill(understand(TableRequest(str(table), images=str(folder / "photos"))), store, tally, tqdm(disable=True))
        ((pictures,),) = store.select("SELECT count(*) FROM pictures")
        store.close()
    seconds = time.perf_counter() - started
    print(f"{tally.read:,} rows in {seconds:.1f} s, {tally.read / seconds:,.0f} a second; {pictures:,} pictures")
    print("\n".join(tally.lines()))


if __name__ == "__main__":
    FLAGS = cli.define(
        output=(None, "Folder for pictures and table."),
        packages=("data/emoji_packages", "Folder of the emoji benchmark's packages."),
        count=(5000, "Products.", 1),
    )
    cli.run(main)
