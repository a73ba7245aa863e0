"""Runs a conversion: workers side by side, resumed where it stopped, joined to a data set at the end.

While it runs, everything lies in a hidden folder beside the output: `plan.json` (what is converted and how), the
sources' indexes, and for every finished block its parts and report. Running the same command again reads the input
again but converts only the blocks whose report is missing.
"""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence

from tqdm import tqdm

from mural_tf.config import PARTIAL, ConfigurationError
from mural_tf.data.convert.assemble import assemble
from mural_tf.data.convert.blocks import Block, read_blocks
from mural_tf.data.convert.settings import Settings
from mural_tf.data.convert.source import Source
from mural_tf.data.convert.tally import Tally
from mural_tf.data.dataset_folder import is_built
from mural_tf.data.npm_packages import exclusive_lock, storage_errors

FORMAT = 1  # raised when the same input would give other bytes than before
PLAN = "plan.json"
AHEAD = 2  # blocks that wait for a worker: reading never stops, and memory stays bounded


def convert(
    sources: Sequence[Source],
    output: str | pathlib.Path,
    settings: Settings,
    restart: bool = False,
    progress: bool = True,
) -> pathlib.Path:
    """Converts the sources into the data set folder `output`, which appears when it is complete.

    The same sources and settings give the same bytes. Stopped in any way, the same call goes on after the last
    finished block; with `restart` it begins anew.

    Raises:
      ConfigurationError: unusable sources, too much of them skipped, another data set in `output`, an unfinished
        conversion of something else beside it, or a full disk.
    """
    output = pathlib.Path(output)
    identity = describe_input(sources, settings)
    folder = output.parent / f".{output.name}.converting"
    if is_built(output, identity):
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed after its last step but one
        return output
    with storage_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(output.parent / f".{output.name}.lock"):
            if not is_built(output, identity):  # another process may have finished it while we waited
                _open_folder(folder, identity, restart)
                for index, source in enumerate(sources):
                    source.prepare(folder / f"source-{index}", progress)
                numbers, tally = _convert_blocks(sources, settings, folder, progress)
                tally.check(settings.max_skipped_fraction, at_end=True)
                assemble(folder, output, identity, numbers, tally, settings.shard_megabytes)
    return output


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
    if plan.is_file():
        if json.loads(plan.read_text(encoding="utf-8")) != identity:
            raise ConfigurationError(
                f"{folder} holds an unfinished conversion of other sources or with other settings: run that one to its "
                "end, or begin anew with --restart."
            )
        for left_over in folder.rglob(f"*{PARTIAL}"):
            left_over.unlink()
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "parts").mkdir(parents=True)
    temporary = folder / (PLAN + PARTIAL)
    temporary.write_text(json.dumps(identity, ensure_ascii=False), encoding="utf-8")
    os.replace(temporary, plan)


def _convert_blocks(sources, settings: Settings, folder: pathlib.Path, progress: bool) -> tuple[list[int], Tally]:
    """Converts what is not converted yet; returns the blocks' numbers and the sum of their tallies."""
    from mural_tf.data.convert.worker import read_report  # imports TensorFlow

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

        for number, report in _in_workers(pending(), sources, settings, folder):
            finished(number, report)
    in_order = Tally()  # so that "first" means first in the input, whichever worker was faster
    for number in numbers:
        in_order.add(read_report(folder, number).tally)
    return numbers, in_order


def _in_workers(blocks: Iterator[Block], sources, settings: Settings, folder: pathlib.Path):
    """Yields (number, report) of every block, as they are done."""
    if settings.workers == 0:
        from mural_tf.data.convert.worker import Converter

        converter = Converter(sources, settings, folder)
        for block in blocks:
            yield block.number, converter.convert(block)
        return
    # A server process imports TensorFlow once, and workers are forked from it: forking this process, whose TensorFlow
    # may be at work, could leave them with locks that nobody releases.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mural_tf.data.convert.worker"])
    with concurrent.futures.ProcessPoolExecutor(
        settings.workers, context, _start_worker, (list(sources), settings, folder)
    ) as pool:
        waiting: dict[concurrent.futures.Future, int] = {}
        try:
            for block in blocks:
                waiting[pool.submit(_convert, block)] = block.number
                if len(waiting) >= settings.workers + AHEAD:
                    yield from _done(waiting, concurrent.futures.FIRST_COMPLETED)
            yield from _done(waiting, concurrent.futures.ALL_COMPLETED)
        except concurrent.futures.process.BrokenProcessPool:
            raise ConfigurationError(
                "A worker was killed, most likely for want of memory: run the same command again with fewer --workers. "
                "What is converted already is kept."
            ) from None
        finally:
            for future in waiting:
                future.cancel()


def _done(waiting: dict, until: str):
    for future in concurrent.futures.wait(waiting, return_when=until).done:
        yield waiting.pop(future), future.result()


_converter = None  # of a worker process


def _start_worker(sources, settings, folder) -> None:
    from mural_tf.data.convert.worker import Converter

    global _converter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the main one decides
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _converter = Converter(sources, settings, folder)


def _die_with_parent() -> None:
    """Ends this worker when the main process is killed: it would wait for blocks for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _convert(block: Block):
    return _converter.convert(block)
