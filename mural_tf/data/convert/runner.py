"""Runs a conversion: workers side by side, resumed where it stopped, joined to a data set at the end.

While it runs, everything lies in a hidden folder beside the output: `plan.json` (what is converted and how), the
sources' indexes, and for every finished block its parts and report. Running the same command again reads the input
again but converts only the blocks whose report is missing.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Iterator, Sequence

from tqdm import tqdm

from mural_tf.config import PARTIAL, ConfigurationError
from mural_tf.data.convert.assemble import assemble
from mural_tf.data.convert.blocks import Block, read_blocks
from mural_tf.data.convert.frequency import count_frequent
from mural_tf.data.convert.near_duplicates import hash_evaluation_images
from mural_tf.data.convert.report import read_report
from mural_tf.data.convert.settings import Settings
from mural_tf.data.convert.source import Source
from mural_tf.data.convert.tally import Tally
from mural_tf.data.convert.translate_train import build_translations
from mural_tf.data.convert.workers import map_blocks
from mural_tf.data.dataset_folder import is_built
from mural_tf.data.npm_packages import exclusive_lock

FORMAT = 1  # raised when the same input would give other bytes than before
PLAN = "plan.json"


def convert(
    sources: Sequence[Source],
    output: str | pathlib.Path,
    settings: Settings,
    restart: bool = False,
    progress: bool = True,
) -> pathlib.Path:
    """Converts the sources into the data set folder `output`, which appears when it is complete.

    The same sources and settings give the same bytes. Stopped in any way, the same call goes on after the last
    finished block; with `restart` it begins anew. With workers, a script calls it below `if __name__ == "__main__":`.

    Raises:
      ConfigurationError: unusable sources, too much of them skipped, another data set in `output`, an unfinished
        conversion of something else beside it, or a full disk.
      OSError: any other failed file operation.
    """
    output = pathlib.Path(output)
    identity = describe_input(sources, settings)
    folder = output.parent / f".{output.name}.converting"
    if is_built(output, identity):
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed after its last step but one
        return output
    output.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(output.parent / f".{output.name}.lock"):
        if is_built(output, identity):  # another process finished it while we waited
            return output
        _open_folder(folder, identity, restart)
        try:
            _prepare(sources, settings, folder, progress)
            numbers, tally = _convert_blocks(sources, settings, folder, progress)
        except KeyboardInterrupt:
            message = "Interrupted. Finished blocks are kept: run the same command again to go on."
            raise KeyboardInterrupt(message) from None
        tally.check(settings.max_skipped_fraction, at_end=True)
        assemble(folder, output, identity, numbers, tally, settings.shard_megabytes)
    return output


def _prepare(sources: Sequence[Source], settings: Settings, folder: pathlib.Path, progress: bool) -> None:
    """Makes what has to be known before the first block; what is there already is not made again."""
    for index, source in enumerate(sources):
        source.prepare(folder / f"source-{index}", progress)
    if settings.evaluation_images:
        hash_evaluation_images(settings.evaluation_images, folder, progress)
    if settings.translations:
        build_translations(settings.translations, settings.translation_languages, folder)
    count_frequent(sources, settings, folder, progress)


def describe_input(sources: Sequence[Source], settings: Settings) -> dict:
    """Returns what identifies a conversion, as JSON values: kinds, options, files with their sizes, settings."""
    described = []
    for source in sources:
        files = [[str(path), os.path.getsize(path)] for path in source.input_files()]
        options = {name: list(v) if isinstance(v, tuple) else v for name, v in vars(source).items() if name[0] != "_"}
        described.append({"kind": source.KIND, **options, "files": files})
    identity = {"name": "converted", "format": FORMAT, "sources": described, "settings": settings.identity()}
    return json.loads(json.dumps(identity))


def _open_folder(folder: pathlib.Path, identity: dict, restart: bool) -> None:
    plan = folder / PLAN
    if restart:
        shutil.rmtree(folder, ignore_errors=True)
    if plan.is_file() and json.loads(plan.read_text(encoding="utf-8")) == identity:
        for left_over in folder.rglob(f"*{PARTIAL}"):
            left_over.unlink()
        return
    if any((folder / "parts").glob("*.json")):
        raise ConfigurationError(
            f"{folder} holds an unfinished conversion of other sources or with other settings: run that one to its "
            "end, or begin anew with --restart."
        )
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "parts").mkdir(parents=True)
    temporary = folder / (PLAN + PARTIAL)
    temporary.write_text(json.dumps(identity, ensure_ascii=False), encoding="utf-8")
    os.replace(temporary, plan)


def _convert_blocks(sources, settings: Settings, folder: pathlib.Path, progress: bool) -> tuple[list[int], Tally]:
    """Converts what is not converted yet; returns the blocks' numbers and the sum of their tallies."""
    numbers: list[int] = []
    tally, positions = Tally(), {}
    total = sum(source.size() for source in sources)
    with tqdm(total=total, unit="B", unit_scale=True, desc="Converting", disable=not progress) as bar:

        def pending() -> Iterator[Block]:
            for block in read_blocks(sources, settings, folder):
                numbers.append(block.number)
                positions[block.number] = block.position
                report = read_report(folder, block.number)
                if report is None:
                    yield block
                else:
                    finished(block.number, report)

        def finished(number, report):
            tally.add(report.tally)
            bar.update(max(0, positions.pop(number) - bar.n))
            bar.set_postfix_str(f"{tally.written} written, {tally.skipped_count} skipped", refresh=False)
            tally.check(settings.max_skipped_fraction)

        for number, report in map_blocks(
            pending(), settings.workers, _make_converter, (list(sources), settings, folder)
        ):
            finished(number, report)
    in_order = Tally()  # so that "first" means first in the input, whichever worker was faster
    for number in numbers:
        in_order.add(read_report(folder, number).tally)
    return numbers, in_order


def _make_converter(*arguments):
    """Only the workers import TensorFlow."""
    from mural_tf.data.convert.worker import Converter

    return Converter(*arguments)
