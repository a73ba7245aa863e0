"""The table of methods: each trained on the emoji benchmark under one budget, measured in the same way.

    python -m benchmarks.table --output=results/methods                              # every method, three seeds
    python -m benchmarks.table --output=results/methods --rows=ablations             # one seed
    python -m benchmarks.table --output=results/methods --rows=stage                 # with and without the stage
    python -m benchmarks.table --output=results/methods --rows=long_runs             # of 5,000 steps
    python -m benchmarks.table --output=results/methods --rows=translated_captions   # translate-train, translate-test
    python -m benchmarks.table --output=results/methods --rows=choices               # what a paper leaves open
    python -m benchmarks.table --output=results/methods --rows=unseen_style          # fine-tuning on the test's style
    python -m benchmarks.table --output=results/methods --rows=mule_features         # MULE on a trained image tower
    python -m benchmarks.table --output=results/names --rows=joint_or_staged --data_dir=data/emoji_core_names
    python -m benchmarks.table --output=results/methods --rows=bridge                # another text tower
    python -m benchmarks.table --output=results/methods --rows=bridge_real           # that is real
    python -m benchmarks.table --output=results/methods --rows=bridge_tried          # and what might carry it further
    python -m benchmarks.table --output=results/quick --budget=0.1 --seeds=1

The budget is what emoji_mural sees: so many image-caption pairs and so many text pairs, drawn with repetition. A
method may leave pairs unused (ALIGN sees no text pair) but not see more; what it saw is in the table. Every method is
trained by run_pretrain.py, its later stages by run_finetune.py, and evaluated as they evaluate. No method sees an
image-caption pair in the languages of HELD_OUT; text pairs in them it may see, and captions that these translate. The
rows of --rows=stage go beyond the budget, by a stage of translations. --held_out_names trains and measures on the build
with held-out names, which has a column more.

A run is a folder below --output, with its output in a .log next to it. --jobs run at a time, each on its share of
the cores: small towers leave two threads waiting for each other. The same command goes on where it stopped, and
finished runs are kept, in the table too where --methods names others; Ctrl-C lets the runs save first. Written:
methods.csv, a line for each seed, as docs/results/ has it (`benchmarks.results`), or of another name of --rows; and
methods_languages.csv, mean recall by language.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from absl import flags

from benchmarks import table_rows
from benchmarks.results import table as rendered_table
from benchmarks.results import write_rows
from benchmarks.table_rows import HELD_OUT, ROWS, SEEN, Method, Stage, slug, step_count
from mural_lite import command_line as cli
from mural_lite.errors import UserError
from mural_lite.record_format import IMAGE_TEXT, TEXT_PAIRS
from mural_tf.demo.emoji import CORE, DOWNLOADS, UNDER_RESOURCED, WELL_RESOURCED, Variant, build_emoji
from mural_tf.evaluation.retrieval import HELD_OUT as HELD_OUT_NAMES

ROOT = pathlib.Path(__file__).resolve().parents[1]
SECONDS = "processor_seconds"  # of a whole run that was not interrupted, a file in its workdir
COLUMNS = {  # column → (title, digits, of which the mean over seeds is shown with one less)
    "well": ("nine well-resourced", 2),
    "under": ("twelve with captions for 3% of the emoji", 2),
    "none": ("four without captions", 2),
    "en": ("English", 2),
    "held_out": ("held-out names, text to image, sixteen", 2),
    "translation_well": ("translation, nine", 2),
    "translation_under": ("translation, twelve", 2),
    "translation_none": ("translation, four", 2),
    "held_out_translation_well": ("held-out translation, nine", 2),
    "held_out_translation_under": ("held-out translation, sixteen", 2),
    "text_head_translation_well": ("by the text-text head, nine", 2),
    "text_head_translation_under": ("by the text-text head, twelve", 2),
    "text_head_translation_none": ("by the text-text head, four", 2),
    "english_share": ("English among an image's first five names of all languages", 2),
    "precision": ("of these the image's own", 2),
    "styles": ("image to image, another drawing style", 2),
    "parameters": ("parameters", 0),
    "processor_seconds_per_step": ("processor seconds a step", 3),
    "processor_seconds": ("processor seconds", 0),
}
GROUPS = {  # {beginning of the columns' names: languages}
    "well": WELL_RESOURCED,
    "under": tuple(language for language in UNDER_RESOURCED if language not in HELD_OUT),
    "none": HELD_OUT,
    "en": ("en",),
}


@dataclasses.dataclass(frozen=True)
class Run:
    """One stage of a method with one seed, in a folder of its own.

    Attributes:
      source: the folder of the stage before, from which this one starts; `None` for a first stage.
      models: {field: folder} of the models that `Stage.models` names.
    """

    stage: Stage
    seed: int
    workdir: pathlib.Path
    source: pathlib.Path | None
    models: dict[str, pathlib.Path] = dataclasses.field(default_factory=dict)

    @property
    def needed_workdirs(self) -> set[pathlib.Path]:
        """The folders of the runs that must be trained before this run."""
        return {self.source, *self.models.values()} - {None}


def runs_of(stages: Sequence[Stage], seed: int, scale: float, folder: pathlib.Path) -> list[Run]:
    """Returns the runs of a method's stages in their order, each after the runs of the models that it needs.

    Methods that begin with the same stages share these stages' folders.

    Args:
      stages: the method's stages.
      seed: the seed of all of these runs.
      scale: the share of the full budget, 1.0 for all of it.
      folder: the folder of the runs; a run has a folder in its `seed0/`, `seed1/`, ….
    """
    runs = []
    names = []
    source = None
    for stage in stages:
        models = {}
        for field, model_stages in stage.models:
            model_runs = runs_of(model_stages, seed, scale, folder)
            runs += model_runs
            models[field] = model_runs[-1].workdir
        names.append(stage_folder(stage, scale))
        name = "+".join(names)
        if len(name) > 240:  # file systems allow 255, and the log's name is longer; the hash tells cut names apart
            name = f"{name[:200]}+{hashlib.sha256(name.encode()).hexdigest()[:12]}"
        runs.append(Run(stage, seed, folder / f"seed{seed}" / name, source, models))
        source = runs[-1].workdir
    return runs


def stage_folder(stage: Stage, scale: float) -> str:
    """Returns the name of a stage's folder, which tells its configuration, its steps and its settings.

    An example is "emoji_mural-1100,image_text_languages=en". `scale` is the share of the full budget.
    """
    config = stage.config.replace(":", "_")
    parts = [f"{config}-{step_count(stage, scale)}"]
    for name, value in dict(stage.overrides).items():  # a field that is set twice has the last value
        values = value if isinstance(value, tuple) else (value,)
        field = name.split(".")[-1]
        parts.append(f"{field}={'-'.join(map(str, values))}")
    if stage.student:
        parts.append(f"student={stage.student}")
    if stage.words:
        parts.append("words")
    elif stage.data:
        parts.append(stage.data)
    return ",".join(parts)


def execute(runs: Iterable[Run], jobs: int, perform: Callable[[Run], None], after: Callable[[], None]) -> list[Run]:
    """Performs runs in threads, each run after the runs that it needs, and returns the runs that failed.

    A run fails if `perform` raises `UserError`, which is printed. Runs that need a failed run are left out.

    Args:
      runs: the runs, in any order.
      jobs: the number of threads.
      perform: trains and measures a run; it is called in one of the threads.
      after: is called in this thread, after each run that has not failed.
    """
    trained_workdirs: set[pathlib.Path] = set()
    failed_runs = []
    waiting = list(runs)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        while ready := [run for run in waiting if run.needed_workdirs <= trained_workdirs]:
            waiting = [run for run in waiting if run not in ready]
            run_of = {pool.submit(perform, run): run for run in ready}
            for future in concurrent.futures.as_completed(run_of):
                run = run_of[future]
                try:
                    future.result()
                except UserError as error:
                    print(f"Failed, the others go on: {error}", flush=True)
                    failed_runs.append(run)
                else:
                    trained_workdirs.add(run.workdir)
                    after()
    return failed_runs


def train(run: Run, scale: float, data: str, held_out_names: bool = False) -> None:
    """Trains and evaluates a run if it is not trained yet, and writes and prints how long it took.

    Args:
      run: the run.
      scale: the share of the full budget.
      data: the benchmark's folder.
      held_out_names: whether `data` was built with held-out names.

    Raises:
      UserError: the run's command failed or was stopped.
    """
    summary = run.workdir / "summary.json"
    if summary.exists():
        return
    start = time.monotonic()
    processor_seconds = call(command(run, scale, data, held_out_names), log_of(run))
    if not summary.exists():  # a run that got SIGTERM has saved and ends as usual
        raise UserError(f"{run.workdir} was stopped; the same command goes on.")
    (run.workdir / SECONDS).write_text(f"{processor_seconds:.0f}", encoding="utf-8")
    minutes = (time.monotonic() - start) / 60
    print(f"seed {run.seed}, {run.workdir.name}: trained and evaluated in {minutes:.1f} min", flush=True)


def measure_translation(run: Run, data: str) -> None:
    """Runs `benchmarks.translation` on a run's model if its results are missing; raises `UserError` if it fails."""
    file = translation_file(run.workdir)
    if not file.exists():
        call([sys.executable, "-m", "benchmarks.translation", str(run.workdir), data, str(file)], log_of(run))


def evaluate_in_english(run: Run, data: str) -> None:
    """Evaluates a run's model on texts in English word by word, unless it has a report; raises `UserError`."""
    report = english_report(run.workdir)
    if not report.exists():
        output = report.parents[1]  # the command adds "evaluation/" and the report's name
        options = [f"--model={run.workdir}", f"--data_dir={data}", "--benchmark=emoji", f"--output={output}"]
        options.append(f"--protocol.translations={folder_of(run, 'in_english.tsv')}")
        call([sys.executable, "run_evaluate.py", *options], log_of(run))


def english_report(workdir: pathlib.Path) -> pathlib.Path:
    """Returns the path of the evaluation with texts translated into English."""
    return workdir / "in_english" / "evaluation" / "emoji-test.json"


def translation_file(workdir: pathlib.Path) -> pathlib.Path:
    """Returns the path of the results of `benchmarks.translation`."""
    return workdir / "evaluation" / "translation.json"


def log_of(run: Run) -> pathlib.Path:
    """Returns the path of a run's log, next to its workdir."""
    return run.workdir.with_name(f"{run.workdir.name}.log")


def command(run: Run, scale: float, data: str, held_out_names: bool = False) -> list[str]:
    """Returns the command that trains a run: run_pretrain.py for a first stage, else run_finetune.py.

    For the arguments see `train`.
    """
    stage = run.stage
    file, *arguments = stage.config.split(":", 1)
    if stage.words:
        arguments.append(f"words={folder_of(run, 'words')}")
    config = f"configs/{file}.py"
    if arguments:
        config += f":{','.join(arguments)}"
    if run.source is None:
        script = ["run_pretrain.py"]
    else:
        script = ["run_finetune.py", f"--from={run.source}"]
    fields = config_fields(run, scale, data, held_out_names)
    overrides = [f"--config.{name}={value}" for name, value in fields.items()]
    return [sys.executable, *script, f"--config={config}", f"--workdir={run.workdir}", *overrides]


def config_fields(run: Run, scale: float, data: str, held_out_names: bool) -> dict[str, object]:
    """Returns {"train.steps": 1400, …}: the fields of the configuration that a run's command line sets.

    For the arguments see `train`.
    """
    stage = run.stage
    steps = step_count(stage, scale)
    # Runs of a small budget have few steps: they, too, log several times and save at least once.
    fields = {
        "seed": run.seed,
        "data.directory": data,
        "data.image_text_languages": SEEN if stage.config != "emoji:embn" else ("en",),  # EmbN is a model of English
        "train.steps": steps,
        "train.log_every": max(1, min(25, steps // 4)),
        "train.checkpoint_every": max(1, min(250, steps)),
        "train.export": False,
    }
    if held_out_names:
        fields["data.source"] = "records"  # read as `build_data` wrote them
    if stage.data:
        fields["data.source"] = "records"
        fields["data.directory"] = str(folder_of(run, stage.data))
    if stage.data.endswith("translated"):
        fields["data.image_text_languages"] = ()  # captions in every language
    fields.update(stage.overrides)
    for field, workdir in run.models.items():
        fields[field] = str(workdir)
    if stage.student:
        fields["method.student"] = str(folder_of(run, stage.student))
    if table_rows.load(stage).optimizer.warmup_steps:
        fields["optimizer.warmup_steps"] = max(1, steps // 10)  # a tenth, also of few steps
    return fields


def folder_of(run: Run, name: str) -> pathlib.Path:
    """Returns the path of data or of a model that runs share: `name` in the folder of all runs."""
    return run.workdir.parents[1] / name  # a workdir is in the folder of its seed


def build_variant(name: str, data: str, output: pathlib.Path, scale: float) -> None:
    """Writes a variant of the benchmark's data; for "features" it trains an image tower first.

    Args:
      name: the variant, as `Stage.data` names it.
      data: the benchmark's folder.
      output: the folder to write, next to the folders of other variants.
      scale: the share of the full budget, on which the image tower of "features" is trained.
    """
    from mural_tf.ingest.translate import build_translated

    if name == "translated":
        build_translated(data, data, output)
    elif name == "features_translated":
        build_translated(str(output.with_name("features")), data, output)
    elif name == "features":
        build_features(data, output, scale)
    elif name == "unseen_style":
        build_unseen_style(data, output)
    elif name == "quarter":
        build_quarter(data, output)
    else:  # "one_language"
        build_emoji(output, DOWNLOADS, Variant(one_language=True))


def build_unseen_style(data: str, output: pathlib.Path) -> None:
    """Writes a data set in the test's drawing style: 250 drawings of dev to train on, and the test as it is."""
    parts = [(IMAGE_TEXT, "train", "dev", slice(250)), (IMAGE_TEXT, "test", "test", slice(None))]
    _build_part(data, output, "drawings in the test's style", parts, shards=1)


def build_quarter(data: str, output: pathlib.Path) -> None:
    """Writes a quarter of the training data, every fourth picture and text pair, and dev and test as they are."""
    parts = [
        (IMAGE_TEXT, "train", "train", slice(0, None, 4)),
        (TEXT_PAIRS, "train", "train", slice(0, None, 4)),
        (IMAGE_TEXT, "dev", "dev", slice(None)),
        (IMAGE_TEXT, "test", "test", slice(None)),
    ]
    _build_part(data, output, "a quarter of the training data", parts, shards=4)


def _build_part(data: str, output: pathlib.Path, name: str, parts: Sequence[tuple], shards: int) -> None:
    """Writes a data set that holds some records of another one.

    Args:
      data: the folder of the other data set.
      output: the folder to write.
      name: the new data set's name in `dataset.json`.
      parts: (type of records, split in `output`, split in `data`, slice of this split's records) of each part.
      shards: files that each part is written into.
    """
    from mural_tf.data.dataset_builder import build_folder
    from mural_tf.data.records import read_records, write_records

    def write(folder: pathlib.Path) -> dict:
        """Writes the records, and returns entries of `dataset.json`, as `build_folder` expects it."""
        for record_type, split, source_split, rows in parts:
            source = read_records(data, record_type, source_split)
            records = itertools.islice(source, rows.start, rows.stop, rows.step)
            write_records(folder, record_type, split, records, shards=shards)
        return {}  # `dataset.json` says no more than the name

    build_folder(output, {"name": name, "data_dir": data}, write)


def build_features(data: str, output: pathlib.Path, scale: float) -> None:
    """Trains and exports ALIGN, if it is not there yet, and writes the benchmark with its features for pictures.

    Raises `UserError` if one of these commands fails. For the arguments see `build_variant`.
    """
    from mural_tf.ingest.features import cache_features

    align = runs_of(table_rows.ALIGN, 0, scale, output.parent)[-1]  # of the seed 0
    train(align, scale, data)
    exported = output.with_name("align")
    if not exported.exists():
        call([sys.executable, "run_export.py", f"--model={align.workdir}", f"--output={exported}"], log_of(align))
    size = table_rows.load(align.stage).image_tower.image_size
    cache_features(data, output, str(exported / "hub" / "image_encoder"), resize=size, image_size=size)


def call(arguments: list[str], log: pathlib.Path) -> float:
    """Runs a command in the project's folder and returns its processor seconds, its children's included.

    Args:
      arguments: the program, its first argument (a script or "-m"), and further arguments.
      log: the file to which the command and its output are added.

    Raises:
      UserError: the command ended with another exit code than 0; the message has the last line of its output.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        print("$", " ".join(arguments[1:]), file=file, flush=True)  # without the path of Python
        process = subprocess.Popen(arguments, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        process.returncode = code  # so that `Popen` does not wait for it again
    if code:
        last_line = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()[-1]
        raise UserError(f"{arguments[1]} ended with exit code {code} ({log}): {last_line}")
    return usage.ru_utime + usage.ru_stime


def collect(
    methods: Iterable[Method], seeds: dict[str, int], scale: float, folder: pathlib.Path, translation: bool = True
) -> dict[str, list[dict]]:
    """Returns {method: [numbers of seed 0, numbers of seed 1, …]}, up to its first seed that is not measured.

    The numbers are what `measure` returns. Methods of which no seed is measured are left out.

    Args:
      methods: the methods.
      seeds: {method: how many seeds are looked for}.
      scale: the share of the full budget.
      folder: the folder of the runs.
      translation: whether a run counts as measured only if its translation is measured.
    """
    results = {}
    for method in methods:
        for seed in range(seeds[method.name]):
            workdirs = [run.workdir for run in runs_of(method.stages, seed, scale, folder)]
            workdir = workdirs[-1]
            if method.asked_in_english:
                last_file = english_report(workdir)
            elif translation:
                last_file = translation_file(workdir)
            else:
                last_file = workdir / "summary.json"
            if not last_file.exists():
                break
            results.setdefault(method.name, []).append(measure(method, workdirs))
    return results


def measure(method: Method, workdirs: Sequence[pathlib.Path]) -> dict:
    """Returns the numbers of a method with one seed: {column of `COLUMNS`: number}, "commit" and "languages".

    "languages" is {language: mean recall in percent}. A number that was not measured is `None`.

    Args:
      method: the method.
      workdirs: the workdirs of all its stages, in their order.
    """
    workdir = workdirs[-1]
    row = _image_columns(method, workdir)
    row |= _translation_columns(method, workdir)
    row["commit"] = read_json(workdir / "environment.json")["revision"]
    row["parameters"] = read_json(workdir / "summary.json")["parameters"]
    row["processor_seconds_per_step"] = processor_seconds_per_step(workdir)
    if method.stages[-1].config.startswith("bridge"):  # no steps, or few: the whole run, with start and evaluation
        row["processor_seconds"] = float((workdir / SECONDS).read_text(encoding="utf-8"))
    else:
        row["processor_seconds"] = processor_seconds_of_steps(workdirs)
    return row


def _image_columns(method: Method, workdir: pathlib.Path) -> dict:
    """Returns the columns of `measure` on the retrieval of images, from the evaluation in the last stage's workdir."""
    if method.asked_in_english:
        benchmark = "emoji"
        metrics = read_json(english_report(workdir))["metrics"]
    else:
        benchmark = "retrieval" if method.stages[-1].data else "emoji"  # a variant of the data is a folder of records
        metrics = read_json(workdir / "summary.json")["metrics"]

    def recall(language: str, metric: str = "mean_recall") -> float | None:
        """Returns a language's metric in percent; `None` if the method lacks it, or it was not measured."""
        if not method.images or language not in method.languages:
            return None
        return metrics.get(f"{benchmark}/{language}/{metric}")

    columns = {name: _mean(languages, recall) for name, languages in GROUPS.items()}
    columns["languages"] = {language: recall(language) for language in CORE}
    columns["held_out"] = _mean(UNDER_RESOURCED, lambda language: recall(language, HELD_OUT_NAMES))
    return columns


def _mean(languages: Iterable[str], value_of: Callable[[str], float | None]) -> float | None:
    """Returns the mean of the languages' values; `None` if a language has no value."""
    values = [value_of(language) for language in languages]
    if None in values:
        return None
    return statistics.mean(values)


def _translation_columns(method: Method, workdir: pathlib.Path) -> dict:
    """Returns the columns of `measure` that `benchmarks.translation` measures, `None` for a number that is missing.

    Columns of the text-text head are `None`, too, if the method's last stage does not train that head.
    """
    measured = {"default": {}}
    if translation_file(workdir).exists():
        measured = read_json(translation_file(workdir))
    recalls_by_head = {"translation": measured["default"], "text_head_translation": {}}
    if table_rows.trains_text_head(method.stages[-1]):
        recalls_by_head["text_head_translation"] = measured.get("text_text", {})
    columns = {}
    for head, all_recalls in recalls_by_head.items():
        recalls = {language: recall for language, recall in all_recalls.items() if language in method.languages}
        for group in ("well", "under", "none"):
            languages = [language for language in GROUPS[group] if language != "en"]  # English is the pivot
            columns[f"{head}_{group}"] = _mean(languages, recalls.get)
    held_out_recalls = measured.get("default_held_out", {})
    columns["held_out_translation_well"] = _mean(WELL_RESOURCED[1:], held_out_recalls.get)  # without English
    columns["held_out_translation_under"] = _mean(UNDER_RESOURCED, held_out_recalls.get)
    mixed_pool = measured.get("mixed_pool", {})
    columns["english_share"] = mixed_pool.get("english_share")
    columns["precision"] = mixed_pool.get("precision")
    columns["styles"] = measured.get("styles")
    return columns


def read_json(path: pathlib.Path) -> dict:
    """Returns a file's JSON object."""
    return json.loads(path.read_text(encoding="utf-8"))


def processor_seconds_of_steps(workdirs: Sequence[pathlib.Path]) -> float | None:
    """Returns the processor seconds of the steps of all stages; `None` if a stage's seconds per step are unknown.

    Start, evaluation and export do not count.
    """
    total = 0.0
    for workdir in workdirs:
        seconds = processor_seconds_per_step(workdir)
        if seconds is None:
            return None
        total += seconds * read_json(workdir / "summary.json")["step"]
    return total


def processor_seconds_per_step(workdir: pathlib.Path) -> float | None:
    """Returns the processor seconds of a run's training step, which other programs on the machine change little.

    It is the median of the log's rows without the first row, whose steps trace functions; `None` if there is no other.
    """
    column = "train/processor_seconds_per_step"
    seconds = []
    for line in (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if column in row:
            seconds.append(row[column])
    return statistics.median(seconds[1:]) if len(seconds) > 1 else None


def write_table(path: pathlib.Path, results: dict[str, list[dict]], pairs: dict[str, tuple[int, int]]) -> None:
    """Writes a .csv file with a line for each method and seed: their numbers under the titles of `COLUMNS`.

    Args:
      path: the file.
      results: {method: numbers of its seeds}, see `collect`.
      pairs: {method: (image-caption pairs, text pairs) that it sees in training}.
    """
    lines = []
    for method, rows in results.items():
        captions, text_pairs = pairs[method]
        for seed, row in enumerate(rows):
            line = {"method": method, "seed": seed, "commit": row["commit"]}
            for column, (title, digits) in COLUMNS.items():
                number = row.get(column)
                line[title] = "" if number is None else f"{number:.{digits}f}"
            line["image-caption pairs"] = captions
            line["text pairs"] = text_pairs
            lines.append(line)
    write_rows(path, lines)


def write_languages(path: pathlib.Path, results: dict[str, list[dict]]) -> None:
    """Writes a .csv file with a line for each method and seed: the mean recall of images in each language.

    `results`: {method: numbers of its seeds}, see `collect`.
    """
    lines = []
    for method, rows in results.items():
        for seed, row in enumerate(rows):
            line = {"method": method, "seed": seed, "commit": row["commit"]}
            for language, recall in row["languages"].items():
                line[language] = "" if recall is None else f"{recall:.2f}"
            lines.append(line)
    write_rows(path, lines)


def chosen_methods() -> tuple[Method, ...]:
    """Returns the methods that --rows and --methods choose.

    Raises `UserError` for an unknown method, and for a method without its configuration.
    """
    chosen = ROWS[GROUP.value]
    by_slug = {slug(method.name): method for method in chosen}
    unknown = [name for name in NAMES.value if name not in by_slug]
    if unknown:
        raise UserError(f"Unknown methods {', '.join(unknown)}; known: {', '.join(by_slug)}.")
    if NAMES.value:
        chosen = tuple(by_slug[name] for name in NAMES.value)
    for method in chosen:
        for stage in method.stages:
            table_rows.load(stage)  # raises, before any run starts
    return chosen


@dataclasses.dataclass
class Plan:
    """All runs that a table needs.

    Attributes:
      runs: {workdir: run}, in the order in which they are started.
      last_workdirs: the workdirs of the methods' last stages.
      asked_in_english: the last workdirs of methods whose texts are translated into English.
    """

    runs: dict[pathlib.Path, Run] = dataclasses.field(default_factory=dict)
    last_workdirs: set[pathlib.Path] = dataclasses.field(default_factory=set)
    asked_in_english: set[pathlib.Path] = dataclasses.field(default_factory=set)


def plan_of(methods: Sequence[Method], seeds: dict[str, int], scale: float, folder: pathlib.Path) -> Plan:
    """Returns the plan of the methods' runs.

    Args:
      methods: the methods.
      seeds: {method: number of its seeds}.
      scale: the share of the full budget.
      folder: the folder of the runs.
    """
    plan = Plan()
    for seed in range(max(seeds.values())):  # all methods of a seed first: a table that was cut off has whole seeds
        for method in methods:
            if seed >= seeds[method.name]:
                continue
            method_runs = runs_of(method.stages, seed, scale, folder)
            last_workdir = method_runs[-1].workdir
            plan.runs.update({run.workdir: run for run in method_runs})
            plan.last_workdirs.add(last_workdir)
            if method.asked_in_english:
                plan.asked_in_english.add(last_workdir)
    return plan


def build_data(plan: Plan, data: str, scale: float) -> None:
    """Builds the data and models that several runs share, before two runs build them at once.

    These are the benchmark in the folder `data`, its variants, word-by-word texts, students of bridges, and texts
    translated into English. `scale` is the share of the full budget. Raises `UserError` if a command fails.
    """
    from benchmarks.translation import write_in_english
    from benchmarks.word_by_word import build_word_by_word
    from mural_lite.files import PACKAGE, as_path
    from mural_tf.pretrained.importers import kind_of
    from mural_tf.runs.import_pretrained import import_into_workdir
    from mural_tf.training.checkpoints import has_checkpoint

    has_locale_names = GROUP.value != "joint_or_staged"  # whose rows are of names of emoji only, see `NAMES_ALONE`
    build_emoji(data, DOWNLOADS, Variant(held_out_names=HELD_OUT_BUILD.value, locale_names=has_locale_names))
    runs = plan.runs.values()
    for words in {folder_of(run, "words") for run in runs if run.stage.words}:
        build_word_by_word(data, words, UNDER_RESOURCED)
    for student in {folder_of(run, run.stage.student) for run in runs if run.stage.student}:
        if not has_checkpoint(student):  # once, and not by every run, because it is large
            package = as_path(PACKAGE + student.name)
            import_into_workdir(kind_of(package), package, student)
    variant_folders = {run.stage.data: folder_of(run, run.stage.data) for run in runs if run.stage.data}
    for name, variant_folder in sorted(variant_folders.items()):  # "features" before "features_translated", made of it
        build_variant(name, data, variant_folder, scale)
    for path in {folder_of(plan.runs[workdir], "in_english.tsv") for workdir in plan.asked_in_english}:
        write_in_english(data, path)


def main(_) -> None:
    """Builds the data, trains and measures the chosen methods, and writes and prints their table.

    Raises `UserError` for an unknown method, and, after the other runs, if a run has failed.
    """
    chosen = chosen_methods()
    scale = BUDGET.value
    seeds = {method.name: SEEDS.value or table_rows.default_seeds(method) for method in chosen}
    folder = pathlib.Path(OUTPUT.value).resolve()
    data = str(pathlib.Path(DATA.value).resolve())
    table = folder / f"{GROUP.value}.csv"
    plan = plan_of(chosen, seeds, scale, folder / "runs")
    build_data(plan, data, scale)
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(max(1, (os.cpu_count() or 1) // JOBS.value)))

    def train_and_measure(run: Run) -> None:
        """Trains a run, and measures the last run of a method in translation and in English, as far as asked for."""
        train(run, scale, data, HELD_OUT_BUILD.value)
        if run.workdir in plan.last_workdirs and TRANSLATION.value:
            measure_translation(run, data)
        if run.workdir in plan.asked_in_english:
            evaluate_in_english(run, data)

    def write_tables() -> None:
        """Writes the lines of all methods of the table that are measured now or were measured before."""
        methods = ROWS[GROUP.value]
        # Runs before this one may have had other seeds: three by default.
        most_seeds = {method.name: max(3, *seeds.values()) for method in methods}
        results = collect(methods, most_seeds, scale, folder / "runs", TRANSLATION.value)
        if results:
            write_table(table, results, {method.name: method.pairs(scale) for method in methods})
            write_languages(table.with_name(f"{GROUP.value}_languages.csv"), results)

    run_count = len(plan.runs)
    print(f"{run_count} runs, {JOBS.value} at a time. What they print is in {folder / 'runs'}/*/*.log", flush=True)
    failed = execute(plan.runs.values(), JOBS.value, train_and_measure, write_tables)
    if table.exists():
        print(rendered_table(table))
    if failed:
        raise UserError(f"{len(failed)} of {run_count} runs failed, as said above; the same command goes on.")


if __name__ == "__main__":
    OUTPUT = flags.DEFINE_string("output", "results/methods", "Folder for the runs and the table.")
    DATA = flags.DEFINE_string("data_dir", "data/emoji_core", "The emoji benchmark; built here if it is not there.")
    NAMES = flags.DEFINE_list("methods", [], "Of these only some, by their names in lower case with hyphens.")
    GROUP = flags.DEFINE_enum("rows", "methods", list(ROWS), "Which table.")
    HELD_OUT_BUILD = flags.DEFINE_bool(
        "held_out_names", False, "Build --data_dir with held-out names; give the table an --output of its own."
    )
    SEEDS = flags.DEFINE_integer("seeds", 0, "Runs of each method; 0: 3, of ablations and choices 1.", lower_bound=0)
    BUDGET = flags.DEFINE_float("budget", 1.0, "Share of the budget.")
    TRANSLATION = flags.DEFINE_bool("translation", True, "Whether translation is measured, too.")
    JOBS = flags.DEFINE_integer("jobs", 2, "Runs at a time.", lower_bound=1)
    cli.run(main)
