"""Small files for the converter's tests, and readers of what it writes."""

import json
import pathlib
import zipfile

from mural_tf.data.records import IMAGE_TEXT, TEXT_PAIRS, read_records
from mural_tf.ingest.convert import KINDS, convert
from mural_tf.ingest.source import Settings, parse_source


def run(sources, output: pathlib.Path, **settings) -> pathlib.Path:
    """Converts in this process, unless `workers` says otherwise; many small units."""
    values = {"workers": 0, "unit_bytes": 60_000, "max_skipped_fraction": 1.0, **settings}
    parsed = [parse_source(source, KINDS) for source in sources]
    return convert(parsed, output, Settings(**values), progress=False)


def pairs_in(output: pathlib.Path, split: str = "train") -> list:
    return list(read_records(output, TEXT_PAIRS, split))


def images_in(output: pathlib.Path, split: str = "train") -> list:
    return list(read_records(output, IMAGE_TEXT, split))


def reported(output: pathlib.Path, what: str = "skipped", value: str = "count") -> dict[str, object]:
    """kind -> "count" or "first" of what `dataset.json` says was "skipped" or "left_out"."""
    found = json.loads((output / "dataset.json").read_text(encoding="utf-8"))[what]
    return {kind: entry[value] for kind, entry in found.items()}


def contents(output: pathlib.Path) -> dict[str, bytes]:
    """Every file of a data set."""
    return {str(p.relative_to(output)): p.read_bytes() for p in sorted(output.rglob("*")) if p.is_file()}


def write_moses(path: pathlib.Path, members: dict[str, bytes]) -> pathlib.Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README", "OPUS\n")
        archive.writestr("LICENSE", "see README\n")
        for name, content in members.items():
            archive.writestr(name, content)
    return path
