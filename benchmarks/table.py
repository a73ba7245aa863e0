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


@dataclasses.dataclass(frozen=True)
class Run:
    """One stage of a method with one seed, in a folder of its own; `source` is the folder of the stage before.

    `models`: the folders of what `Stage.models` names.
    """

    stage: Stage
    seed: int
    workdir: pathlib.Path
    source: pathlib.Path | None
    models: dict[str, pathlib.Path] = dataclasses.field(default_factory=dict)


def runs_of(stages: Sequence[Stage], seed: int, scale: float, folder: pathlib.Path) -> list[Run]:
    """Returns the runs of a method's stages, the last one last. Stages that begin alike share their folders."""
    runs, names, source = [], [], None
    for stage in stages:
        others = {field: runs_of(model_stages, seed, scale, folder) for field, model_stages in stage.models}
        runs.extend(itertools.chain.from_iterable(others.values()))
        names.append(stage_folder(stage, scale))
        models = {field: model_stages[-1].workdir for field, model_stages in others.items()}
        name = "+".join(names)
        if len(name) > 240:  # file systems allow 255
            name = f"{name[:200]}+{hashlib.sha256(name.encode()).hexdigest()[:12]}"
        runs.append(Run(stage, seed, folder / f"seed{seed}" / name, source, models))
        source = runs[-1].workdir
    return runs


def stage_folder(stage: Stage, scale: float) -> str:
    """A folder name that says all of a stage: "emoji_mural-1100,image_text_languages=en"."""
    values = {name: value if isinstance(value, tuple) else (value,) for name, value in stage.overrides}
    settings = [f"{name.split('.')[-1]}={'-'.join(map(str, value))}" for name, value in values.items()]
    config = stage.config.replace(":", "_")
    data = ["words"] if stage.words else [stage.data] if stage.data else []
    student = [f"student={stage.student}"] if stage.student else []
    return ",".join([f"{config}-{step_count(stage, scale)}", *settings, *student, *data])


def execute(runs: Iterable[Run], jobs: int, perform: Callable[[Run], None], after: Callable[[], None]) -> list[Run]:
    """Calls `perform` for every run, `jobs` at a time, all first stages before the second stages, and `after` after
    each.

    Returns the runs that ended with a `UserError`, which is printed; what starts from them is left out.
    """
    ended, failed, left = {None}, [], list(runs)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        while ready := [run for run in left if {run.source, *run.models.values()} <= ended]:
            left = [run for run in left if run not in ready]
            begun = {pool.submit(perform, run): run for run in ready}
            for future in concurrent.futures.as_completed(begun):
                try:
                    future.result()
                except UserError as error:
                    print(f"Failed, the others go on: {error}", flush=True)
                    failed.append(begun[future])
                else:
                    ended.add(begun[future].workdir)
                    after()
    return failed


def train(run: Run, scale: float, data: str, held_out_names: bool = False) -> None:
    """Trains what is not trained yet."""
    if not (run.workdir / "summary.json").exists():
        begun = time.monotonic()
        seconds = call(command(run, scale, data, held_out_names), log_of(run))
        if not (run.workdir / "summary.json").exists():  # a run that got SIGTERM has saved and ends as usual
            raise UserError(f"{run.workdir} was stopped; the same command goes on.")
        (run.workdir / SECONDS).write_text(f"{seconds:.0f}", encoding="utf-8")
        minutes = (time.monotonic() - begun) / 60
        print(f"seed {run.seed}, {run.workdir.name}: trained and evaluated in {minutes:.1f} min", flush=True)


def translate(run: Run, data: str) -> None:
    """Measures translation where it is not measured yet."""
    if not (file := translation_file(run.workdir)).exists():
        call([sys.executable, "-m", "benchmarks.translation", str(run.workdir), data, str(file)], log_of(run))


def ask_in_english(run: Run, data: str) -> None:
    """Measures a model with all texts translated into English, word by word, where it is not measured yet."""
    folder = english_report(run.workdir).parent
    if not english_report(run.workdir).exists():
        options = [f"--model={run.workdir}", f"--data_dir={data}", "--benchmark=emoji", f"--output={folder.parent}"]
        options.append(f"--protocol.translations={folder_of(run, 'in_english.tsv')}")
        call([sys.executable, "run_evaluate.py", *options], log_of(run))


def english_report(workdir: pathlib.Path) -> pathlib.Path:
    return workdir / "in_english" / "evaluation" / "emoji-test.json"


def translation_file(workdir: pathlib.Path) -> pathlib.Path:
    return workdir / "evaluation" / "translation.json"


def log_of(run: Run) -> pathlib.Path:
    return run.workdir.with_name(f"{run.workdir.name}.log")


def command(run: Run, scale: float, data: str, held_out_names: bool = False) -> list[str]:
    """Returns the command line of a run."""
    steps = step_count(run.stage, scale)
    fields = {
        "seed": run.seed,
        "data.directory": data,
        "data.image_text_languages": SEEN if run.stage.config != "emoji:embn" else ("en",),
        "train.steps": steps,
        "train.log_every": max(1, min(25, steps // 4)),
        "train.checkpoint_every": max(1, min(250, steps)),
        "train.export": False,
        **({"data.source": "records"} if held_out_names else {}),  # as they are: built by `main`
        **({"data.source": "records", "data.directory": str(folder_of(run, run.stage.data))} if run.stage.data else {}),
        **({"data.image_text_languages": ()} if run.stage.data.endswith("translated") else {}),
        **dict(run.stage.overrides),
        **{field: str(workdir) for field, workdir in run.models.items()},
        **({"method.student": str(folder_of(run, run.stage.student))} if run.stage.student else {}),
    }
    if table_rows.load(run.stage).optimizer.warmup_steps:
        fields["optimizer.warmup_steps"] = max(1, steps // 10)
    file, _, arguments = run.stage.config.partition(":")
    if run.stage.words:
        arguments = ",".join(filter(None, (arguments, f"words={folder_of(run, 'words')}")))
    config = f"configs/{file}.py" + (f":{arguments}" if arguments else "")
    script = ["run_pretrain.py"] if run.source is None else ["run_finetune.py", f"--from={run.source}"]
    flags_of_config = [f"--config.{name}={value}" for name, value in fields.items()]
    return [sys.executable, *script, f"--config={config}", f"--workdir={run.workdir}",
            *flags_of_config]  # fmt: skip


def folder_of(run: Run, name: str) -> pathlib.Path:
    """Where the data lies that is made of the benchmark's, for all runs of a table."""
    return run.workdir.parents[1] / name


def build_variant(name: str, data: str, output: pathlib.Path, scale: float) -> None:
    """Makes what `Stage.data` calls `name` out of the benchmark."""
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
    else:
        build_emoji(output, DOWNLOADS, Variant(one_language=True))


def build_unseen_style(data: str, output: pathlib.Path) -> None:
    """Writes 250 drawings of dev, which are in the test's style, to train on, and the test as it is."""
    parts = ((IMAGE_TEXT, "train", "dev", slice(250)), (IMAGE_TEXT, "test", "test", slice(None)))
    _build_part(data, output, "drawings in the test's style", parts, shards=1)


def build_quarter(data: str, output: pathlib.Path) -> None:
    """Writes every fourth picture and every fourth text pair of training, and dev and test as they are."""
    whole = ((IMAGE_TEXT, split, split, slice(None)) for split in ("dev", "test"))
    fourths = ((record_type, "train", "train", slice(0, None, 4)) for record_type in (IMAGE_TEXT, TEXT_PAIRS))
    _build_part(data, output, "a quarter of the training data", (*fourths, *whole), shards=4)


def _build_part(data: str, output: pathlib.Path, name: str, parts: Sequence[tuple], shards: int) -> None:
    """Writes a part of a data set; `parts`: kind of records, split, the split that they come from, and which of it."""
    from mural_tf.data.dataset_builder import build_folder
    from mural_tf.data.records import read_records, write_records

    def write(folder: pathlib.Path) -> dict:
        for record_type, split, source, rows in parts:
            kept = itertools.islice(read_records(data, record_type, source), rows.start, rows.stop, rows.step)
            write_records(folder, record_type, split, kept, shards=shards)
        return {}

    build_folder(output, {"name": name, "data_dir": data}, write)


def build_features(data: str, output: pathlib.Path, scale: float) -> None:
    """Writes the benchmark with a trained ALIGN's features in place of its pictures."""
    from mural_tf.ingest.features import cache_features

    align = runs_of(table_rows.ALIGN, 0, scale, output.parent)[-1]
    train(align, scale, data)
    exported = output.with_name("align")
    if not exported.exists():
        call([sys.executable, "run_export.py", f"--model={align.workdir}", f"--output={exported}"], log_of(align))
    size = table_rows.load(align.stage).image_tower.image_size
    cache_features(data, output, str(exported / "hub" / "image_encoder"), resize=size, image_size=size)


def call(arguments: list[str], log: pathlib.Path) -> float:
    """Returns the processor seconds of a command in this folder; raises `UserError` if it fails. Ctrl-C reaches it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        print("$", " ".join(arguments[1:]), file=file, flush=True)
        process = subprocess.Popen(arguments, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
    if code:
        last = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()[-1]
        raise UserError(f"{arguments[1]} ended with exit code {code} ({log}): {last}")
    return used.ru_utime + used.ru_stime


def collect(
    methods: Iterable[Method], seeds: dict[str, int], scale: float, folder: pathlib.Path, translation: bool = True
) -> dict[str, list[dict]]:
    """Returns the numbers of all that is measured, {method: one row for each of its first seeds}.

    `translation`: whether a run without it is not yet measured.
    """
    results = {}
    for method in methods:
        for seed in range(seeds[method.name]):
            workdirs = [run.workdir for run in runs_of(method.stages, seed, scale, folder)]
            needed = translation_file(workdirs[-1]) if translation else workdirs[-1] / "summary.json"
            if not (english_report(workdirs[-1]) if method.asked_in_english else needed).exists():
                break
            results.setdefault(method.name, []).append(measure(method, workdirs))
    return results


def measure(method: Method, workdirs: Sequence[pathlib.Path]) -> dict:
    """Returns one seed's numbers, {column: number or None}, from the workdirs of its stages.

    Translation is measured with each head, the text-text head where the last stage trains one.
    """
    workdir = workdirs[-1]
    summary = read_json(workdir / "summary.json")
    translation = read_json(translation_file(workdir)) if translation_file(workdir).exists() else {"default": {}}
    under = tuple(language for language in UNDER_RESOURCED if language not in HELD_OUT)
    groups = {"well": WELL_RESOURCED, "under": under, "none": HELD_OUT, "en": ("en",)}

    def mean(languages, value):
        values = [value(language) for language in languages]
        return statistics.mean(values) if None not in values else None

    metrics = summary["metrics"]
    if method.asked_in_english:
        metrics = read_json(english_report(workdir))["metrics"]
    benchmark = "retrieval" if method.stages[-1].data and not method.asked_in_english else "emoji"

    def recall(language, metric="mean_recall"):
        asked = method.images and language in method.languages
        return metrics.get(f"{benchmark}/{language}/{metric}") if asked else None

    row = {name: mean(languages, recall) for name, languages in groups.items()}
    row["languages"] = {language: recall(language) for language in CORE}
    row["held_out"] = mean(UNDER_RESOURCED, lambda language: recall(language, HELD_OUT_NAMES))
    text_head = table_rows.trains_text_head(method.stages[-1])
    by_text_head = translation.get("text_text", {}) if text_head else {}
    for column, values in {"translation": translation["default"], "text_head_translation": by_text_head}.items():
        asked = {language: value for language, value in values.items() if language in method.languages}
        for name in ("well", "under", "none"):
            row[f"{column}_{name}"] = mean([language for language in groups[name] if language != "en"], asked.get)
    held_out_translation = translation.get("default_held_out", {})
    row["held_out_translation_well"] = mean(WELL_RESOURCED[1:], held_out_translation.get)  # without English
    row["held_out_translation_under"] = mean(UNDER_RESOURCED, held_out_translation.get)
    mixed_pool = translation.get("mixed_pool", {})
    row.update({"english_share": mixed_pool.get("english_share"), "precision": mixed_pool.get("precision")})
    row["styles"] = translation.get("styles")
    row["commit"] = read_json(workdir / "environment.json")["revision"]
    row["parameters"] = summary["parameters"]
    row["processor_seconds_per_step"] = processor_seconds_per_step(workdir)
    if method.stages[-1].config.startswith("bridge"):  # no steps, or few: the whole run, with start and evaluation
        row["processor_seconds"] = float((workdir / SECONDS).read_text(encoding="utf-8"))
        return row
    by_stage = [(processor_seconds_per_step(part), read_json(part / "summary.json")["step"]) for part in workdirs]
    is_complete = all(seconds is not None for seconds, _ in by_stage)  # start, evaluation and export are left out
    row["processor_seconds"] = sum(seconds * steps for seconds, steps in by_stage) if is_complete else None
    return row


def read_json(path: pathlib.Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def processor_seconds_per_step(workdir: pathlib.Path) -> float | None:
    """The median over the log's rows except the first, which traces functions; `None` if there is one row only.

    It counts processor time, which other programs on the machine change little.
    """
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    column = "train/processor_seconds_per_step"
    seconds = [row[column] for row in rows if column in row][1:]
    return statistics.median(seconds) if seconds else None


def write_table(path: pathlib.Path, results: dict[str, list[dict]], pairs: dict[str, tuple[int, int]]) -> None:
    """Writes a line for each method and seed, from what `collect` returns and the pairs seen in training."""
    lines = []
    for method, rows in results.items():
        for seed, row in enumerate(rows):
            values = {title: (row.get(column), digits) for column, (title, digits) in COLUMNS.items()}
            cells = {title: "" if value is None else f"{value:.{digits}f}" for title, (value, digits) in values.items()}
            seen = dict(zip(("image-caption pairs", "text pairs"), pairs[method]))
            lines.append({"method": method, "seed": seed, "commit": row["commit"], **cells, **seen})
    write_rows(path, lines)


def write_languages(path: pathlib.Path, results: dict[str, list[dict]]) -> None:
    """Writes a line for each method and seed: the mean recall of images in each language."""
    lines = []
    for method, rows in results.items():
        for seed, row in enumerate(rows):
            recalls = {name: "" if value is None else f"{value:.2f}" for name, value in row["languages"].items()}
            lines.append({"method": method, "seed": seed, "commit": row["commit"], **recalls})
    write_rows(path, lines)


def chosen_methods() -> tuple[Method, ...]:
    """Returns what the flags ask for; raises `UserError` for an unknown name or a missing configuration."""
    chosen = ROWS[GROUP.value]
    by_slug = {slug(method.name): method for method in chosen}
    unknown = [name for name in NAMES.value if name not in by_slug]
    if unknown:
        raise UserError(f"Unknown methods {', '.join(unknown)}; known: {', '.join(by_slug)}.")
    chosen = tuple(by_slug[name] for name in NAMES.value) or chosen
    for method in chosen:
        for stage in method.stages:
            table_rows.load(stage)
    return chosen


def main(_) -> None:
    from benchmarks.translation import write_in_english
    from benchmarks.word_by_word import build_word_by_word
    from mural_lite.files import PACKAGE, as_path
    from mural_tf.pretrained.importers import kind_of
    from mural_tf.runs.import_pretrained import import_into_workdir
    from mural_tf.training.checkpoints import has_checkpoint

    chosen = chosen_methods()
    scale = BUDGET.value
    seeds = {method.name: SEEDS.value or table_rows.default_seeds(method) for method in chosen}
    folder, data = pathlib.Path(OUTPUT.value).resolve(), str(pathlib.Path(DATA.value).resolve())
    table = folder / f"{GROUP.value}.csv"
    # All methods of a seed first: a table that was cut off is complete for some seeds.
    by_method = [
        (method, runs_of(method.stages, seed, scale, folder / "runs"))
        for seed in range(max(seeds.values()))
        for method in chosen
        if seed < seeds[method.name]
    ]
    runs = {run.workdir: run for _, method_runs in by_method for run in method_runs}
    last = {method_runs[-1].workdir for _, method_runs in by_method}
    asked_in_english = {method_runs[-1].workdir for method, method_runs in by_method if method.asked_in_english}
    names_alone = GROUP.value == "joint_or_staged"
    variant = Variant(held_out_names=HELD_OUT_BUILD.value, locale_names=not names_alone)
    build_emoji(data, DOWNLOADS, variant)  # before two runs do it at once
    for words in {folder_of(run, "words") for run in runs.values() if run.stage.words}:
        build_word_by_word(data, words, UNDER_RESOURCED)
    for student in {folder_of(run, run.stage.student) for run in runs.values() if run.stage.student}:
        if not has_checkpoint(student):  # once, and not by every run, because it is large
            package = as_path(PACKAGE + student.name)
            import_into_workdir(kind_of(package), package, student)
    for name, made_folder in sorted(
        {(r.stage.data, folder_of(r, r.stage.data)) for r in runs.values() if r.stage.data}
    ):
        build_variant(name, data, made_folder, scale)
    for path in {folder_of(runs[workdir], "in_english.tsv") for workdir in asked_in_english}:
        write_in_english(data, path)
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(max(1, (os.cpu_count() or 1) // JOBS.value)))

    def train_and_translate(run: Run) -> None:
        train(run, scale, data, HELD_OUT_BUILD.value)
        if run.workdir in last and TRANSLATION.value:
            translate(run, data)
        if run.workdir in asked_in_english:
            ask_in_english(run, data)

    def write() -> None:
        rows = ROWS[GROUP.value]  # measured now or before
        most = {method.name: max(3, *seeds.values()) for method in rows}
        results = collect(rows, most, scale, folder / "runs", TRANSLATION.value)
        if results:
            write_table(table, results, {method.name: method.pairs(scale) for method in rows})
            write_languages(table.with_name(f"{GROUP.value}_languages.csv"), results)

    print(f"{len(runs)} runs, {JOBS.value} at a time. What they print is in {folder / 'runs'}/*/*.log", flush=True)
    failed = execute(runs.values(), JOBS.value, train_and_translate, write)
    if table.exists():
        print(rendered_table(table))
    if failed:
        raise UserError(f"{len(failed)} of {len(runs)} runs failed, as said above; the same command goes on.")


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
