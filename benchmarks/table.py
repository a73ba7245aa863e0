"""The table of methods: each trained on the emoji benchmark under one budget, measured in the same way.

    python -m benchmarks.table --output=results/methods                  # every method, three seeds
    python -m benchmarks.table --output=results/methods --ablations      # the ablations, one seed
    python -m benchmarks.table --output=results/quick --quick            # a tenth of the budget, one seed

The budget is what emoji_mural sees: so many image-caption pairs and so many text pairs, drawn with repetition. A
method may leave pairs unused (ALIGN sees no text pair) but not see more; what it saw is in the table. Every method is
trained by run_pretrain.py, its later stages by run_finetune.py, and evaluated as they evaluate. No method sees an
image-caption pair in the languages of HELD_OUT; text pairs in them it may see.

A run is a folder below --output; the same command goes on where it stopped, and finished runs are kept. Written:
table.md, table.csv, table.json and table.png (with matplotlib), or ablations.* for the second list.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys

from absl import flags

from mural_tf import cli
from mural_tf.config import ConfigurationError
from mural_tf.data.emoji_names import CORE, UNDER_RESOURCED, WELL_RESOURCED

ROOT = pathlib.Path(__file__).resolve().parents[1]
HELD_OUT = ("am", "be", "my", "sw")  # of the under-resourced: no image-caption pair at all; four scripts
SEEN = tuple(language for language in CORE if language not in HELD_OUT)
STEPS, IMAGE_TEXT, TEXT_TEXT = 1_400, 256, 512  # emoji_mural's steps and pairs a step: the budget
QUICK = 0.1  # of the budget


@dataclasses.dataclass(frozen=True)
class Stage:
    """One training run.

    config: name of a file in configs/.
    steps: share of emoji_mural's 1,400 steps.
    captions: image-caption pairs a step, text_pairs: text pairs a step; what the configuration's batches amount to.
    overrides: fields set on the command line.
    """

    config: str
    steps: float = 1.0
    captions: int = IMAGE_TEXT
    text_pairs: int = TEXT_TEXT
    overrides: tuple[tuple[str, object], ...] = ()


@dataclasses.dataclass(frozen=True)
class Method:
    """A row of the table: stages, each but the first starting from the one before; `languages` it can be asked in."""

    name: str
    stages: tuple[Stage, ...]
    languages: tuple[str, ...] = CORE
    images: bool = True  # whether images were trained at all

    def pairs(self, scale: float) -> tuple[int, int]:
        """Returns the image-caption pairs and the text pairs that training sees."""
        steps = [step_count(stage, scale) for stage in self.stages]
        captions = sum(count * stage.captions for count, stage in zip(steps, self.stages))
        return captions, sum(count * stage.text_pairs for count, stage in zip(steps, self.stages))


def mural(name: str, *overrides: tuple[str, object], **stage) -> Method:
    """MURAL in one stage."""
    return Method(name, (Stage("emoji_mural", overrides=overrides, **stage),))


def mule(name: str, lp: bool = True, **overrides) -> Method:
    """MULE with a quarter of the text pairs in LP, or all of them in the one stage."""
    fields = tuple((f"mule.{key}", value) for key, value in overrides.items())
    if not lp:
        return Method(name, (Stage("emoji_mule", overrides=fields),))
    pretraining = Stage("emoji_mule_lp", steps=0.25, captions=0)
    text_pairs = TEXT_TEXT * 3 // 4
    return Method(
        name,
        (pretraining, Stage("emoji_mule", text_pairs=text_pairs,
                            overrides=(("train.text_text_batch", text_pairs), *fields))),
    )  # fmt: skip


def globetrotter(name: str, *overrides: tuple[str, object]) -> Method:
    """Globetrotter, which sees captions and no text pairs."""
    return Method(name, (Stage("emoji_globetrotter", text_pairs=0, overrides=overrides),))


# A triple of ETCL is two image-caption pairs and a text pair. Its stage follows emoji_mural's 1,100 steps.
TRIPLES = (1_100 / STEPS, 300 / (2 * STEPS))
MURAL_FIRST = Stage("emoji_mural", steps=TRIPLES[0])
ETCL_STAGE = Stage("emoji_etcl", steps=TRIPLES[1], captions=2 * IMAGE_TEXT, text_pairs=IMAGE_TEXT)

# The setting of [ETCL] §3.4: captions in English, then a stage that brings five more languages.
ENGLISH = ("data.image_text_languages", ("en",))
SIX = ("data.image_text_languages", ("en", "de", "fr", "cs", "zh", "ja"))

METHODS = (
    Method("ALIGN", (Stage("emoji_align", text_pairs=0),)),
    mural("MURAL"),
    Method("LaBSE-style, text only", (Stage("emoji_labse", captions=0),), images=False),
    Method("ETCL", (MURAL_FIRST, ETCL_STAGE)),
    globetrotter("Globetrotter"),
    mule("MULE"),
    Method("EmbN, English", (Stage("emoji_embn", text_pairs=0),), languages=("en",)),
    Method("PARALLEL-EmbN", (Stage("emoji_parallel_embn", text_pairs=0),)),
)
ABLATIONS = (
    mural("MURAL, text-text weight 0", ("loss.text_text_weight", 0.0), text_pairs=0),
    mural("MURAL, text-text weight 0.05", ("loss.text_text_weight", 0.05)),
    mural("MURAL, text-text weight 0.1"),  # the default: the table's row
    mural("MURAL, text-text weight 0.5", ("loss.text_text_weight", 0.5)),
    mural("MURAL, text-text weight 1", ("loss.text_text_weight", 1.0)),
    mural("MURAL, one head", ("shared_head", True)),
    Method("MURAL from ALIGN", (Stage("emoji_align", steps=0.5, text_pairs=0), Stage(
        "emoji_mural", steps=0.5, overrides=(("other_method", True),)
    ))),
    Method("ETCL, with text-text", (MURAL_FIRST, ETCL_STAGE)),
    Method("ETCL, without text-text", (MURAL_FIRST, dataclasses.replace(
        ETCL_STAGE, text_pairs=0, overrides=(("loss.text_text_weight", 0.0),)
    ))),
    mural("MURAL, English captions", ENGLISH),
    Method("ETCL in six languages on English MURAL", (
        dataclasses.replace(MURAL_FIRST, overrides=(ENGLISH,)), dataclasses.replace(ETCL_STAGE, overrides=(SIX,))
    )),
    globetrotter("Globetrotter, all losses"),
    globetrotter("Globetrotter, without L_t", ("loss.text_text_weight", 0.0)),
    globetrotter("Globetrotter, without L_v", ("loss.image_image_weight", 0.0)),
    globetrotter("Globetrotter, without L_x", ("loss.image_text_weight", 0.0)),
    globetrotter("Globetrotter, without L_c", ("loss.cloze_weight", 0.0)),
    mule("MULE, full"),
    mule("MULE, without NC", neighbourhood_weight=0.0),
    mule("MULE, without LC", language_weight=0.0),
    mule("MULE, without LP", lp=False),
    Method("MULE EmbN: without NC, LC, LP", (Stage("emoji_mule", text_pairs=0, overrides=(
        ("loss.text_text_weight", 0.0), ("mule.neighbourhood_weight", 0.0), ("mule.language_weight", 0.0)
    )),)),
)  # fmt: skip


def step_count(stage: Stage, scale: float) -> int:
    """Steps of a stage when the budget is `scale` times the full one."""
    return max(1, int(STEPS * stage.steps * scale))


def slug(name: str) -> str:
    """A row's name on the command line: "EmbN, English" → "embn-english"."""
    return "-".join("".join(c if c.isalnum() or c == "." else " " for c in name.lower()).split())


def stage_folder(stage: Stage, scale: float) -> str:
    """A folder name that tells all of a stage: "emoji_mural-1100,image_text_languages=en"."""
    values = {name: value if isinstance(value, tuple) else (value,) for name, value in stage.overrides}
    settings = [f"{name.split('.')[-1]}={'-'.join(map(str, value))}" for name, value in values.items()]
    return ",".join([f"{stage.config}-{step_count(stage, scale)}", *settings])


def run_method(method: Method, seed: int, scale: float, folder: pathlib.Path, data: str) -> dict:
    """Trains what is not trained yet and returns the numbers of one seed. Rows share the stages they begin with."""
    source, stages = None, []
    for stage in method.stages:
        stages.append(stage_folder(stage, scale))
        workdir = folder / f"seed{seed}" / "+".join(stages)
        if not (workdir / "summary.json").exists():
            run(command(stage, seed, scale, workdir, source, data))
        source = workdir
    translation = source / "evaluation" / "translation.json"
    if not translation.exists():
        run([sys.executable, "-m", "benchmarks.translation", f"--model={source}", f"--data_dir={data}",
             f"--output={translation}"])  # fmt: skip
    return measure(method, source, method.stages[-1], json.loads(translation.read_text(encoding="utf-8")))


def command(stage: Stage, seed: int, scale: float, workdir: pathlib.Path, source, data: str) -> list[str]:
    """Returns the command line of one stage."""
    steps = step_count(stage, scale)
    fields = {
        "seed": seed,
        "data.directory": data,
        "data.image_text_languages": SEEN if stage.config != "emoji_embn" else ("en",),
        "train.steps": steps,
        "train.log_every": max(1, min(25, steps // 4)),
        "train.checkpoint_every": max(1, min(250, steps)),
        **dict(stage.overrides),
    }
    config = load(stage)
    if config.optimizer.warmup_steps:
        fields["optimizer.warmup_steps"] = max(1, steps // 10)
    script = ["run_pretrain.py"] if source is None else ["run_finetune.py", f"--from={source}"]
    flags_of_config = [f"--config.{name}={value}" for name, value in fields.items()]
    return [sys.executable, *script, f"--config=configs/{stage.config}.py", f"--workdir={workdir}", *flags_of_config]


def load(stage: Stage):
    """Returns a stage's configuration; raises `ConfigurationError` if there is no such file."""
    if importlib.util.find_spec(f"configs.{stage.config}") is None:
        raise ConfigurationError(f"configs/{stage.config}.py does not exist; choose others with --methods=….")
    return importlib.import_module(f"configs.{stage.config}").get_config()


def run(arguments: list[str]) -> None:
    """Runs a command in this folder; raises `ConfigurationError` if it fails. Ctrl-C reaches it too."""
    print("$", " ".join(arguments[1:]), flush=True)
    done = subprocess.run(arguments, cwd=ROOT)
    if done.returncode:
        raise ConfigurationError(f"{arguments[1]} failed with exit code {done.returncode}; what it said is above.")


def measure(method: Method, workdir: pathlib.Path, stage: Stage, translation: dict[str, dict[str, float]]) -> dict:
    """Returns one seed's numbers, {column: number or None}, from what the run left in its workdir.

    Translation is measured with each head, the text-text head where the last stage trains one.
    """
    summary = json.loads((workdir / "summary.json").read_text(encoding="utf-8"))
    card = json.loads((workdir / "export" / "model_card.json").read_text(encoding="utf-8"))
    groups = {
        "well": WELL_RESOURCED,
        "under": tuple(language for language in UNDER_RESOURCED if language not in HELD_OUT),
        "none": HELD_OUT,
        "en": ("en",),
    }

    def mean(languages, value):
        known = [value(language) for language in languages]
        return statistics.mean(known) if None not in known else None

    def recall(language):
        asked = method.images and language in method.languages
        return summary["metrics"].get(f"emoji/{language}/mean_recall") if asked else None

    row = {name: mean(languages, recall) for name, languages in groups.items()}
    heads = {
        "translation": translation["default"],
        "text_head_translation": translation.get("text_text", {}) if trains_text_head(stage) else {},
    }
    for column, known in heads.items():
        asked = {language: value for language, value in known.items() if language in method.languages}
        for name in ("well", "under", "none"):
            row[f"{column}_{name}"] = mean([language for language in groups[name] if language != "en"], asked.get)
    row["parameters"] = card["parameters"]
    row["processor_seconds_per_step"] = processor_seconds_per_step(workdir)
    return row


def trains_text_head(stage: Stage) -> bool:
    """Tells whether a stage compares texts with each other by a head of their own."""
    config = load(stage)
    config.update_from_flattened_dict(dict(stage.overrides))
    return config.loss.text_text_weight > 0 and not config.shared_head


def processor_seconds_per_step(workdir: pathlib.Path) -> float | None:
    """The median over the log's rows but the first, in which functions are traced; None if there is one row only.

    Of processor time, which other programs on the machine change little.
    """
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    column = "train/processor_seconds_per_step"
    seconds = [row[column] for row in rows if column in row]
    return statistics.median(seconds[1:]) if len(seconds) > 1 else None


def main(_) -> None:
    from benchmarks.table_files import write_table

    chosen = ABLATIONS if ABLATE.value else METHODS
    if NAMES.value:
        known = {slug(method.name): method for method in chosen}
        unknown = [name for name in NAMES.value if name not in known]
        if unknown:
            raise ConfigurationError(f"Unknown methods {', '.join(unknown)}; known: {', '.join(known)}.")
        chosen = tuple(known[name] for name in NAMES.value)
    for method in chosen:
        for stage in method.stages:
            load(stage)  # a missing configuration shows before hours of training
    scale = BUDGET.value or (QUICK if QUICK_RUN.value else 1.0)
    seeds = SEEDS.value or (1 if QUICK_RUN.value or ABLATE.value else 3)
    folder, results = pathlib.Path(OUTPUT.value).resolve(), {}
    for seed in range(seeds):
        for method in chosen:  # all methods of a seed first: a table that was cut off is complete for some seeds
            row = run_method(method, seed, scale, folder / "runs", str(pathlib.Path(DATA.value).resolve()))
            results.setdefault(method.name, []).append(row)
            pairs = {method.name: method.pairs(scale) for method in chosen}
            write_table(folder, "ablations" if ABLATE.value else "table", results, pairs, HELD_OUT)
    print((folder / ("ablations.md" if ABLATE.value else "table.md")).read_text(encoding="utf-8"))


if __name__ == "__main__":
    OUTPUT = flags.DEFINE_string("output", "results/methods", "Folder for the runs and the table.")
    DATA = flags.DEFINE_string("data_dir", "data/emoji_core", "The emoji benchmark; built here if it is not there.")
    NAMES = flags.DEFINE_list("methods", [], "Rows, by the names of their folders; empty: all.")
    ABLATE = flags.DEFINE_bool("ablations", False, "The ablations instead of the methods.")
    QUICK_RUN = flags.DEFINE_bool("quick", False, "A tenth of the budget and one seed.")
    SEEDS = flags.DEFINE_integer("seeds", 0, "Runs of each method; 0: 3, of ablations 1.")
    BUDGET = flags.DEFINE_float("budget", 0.0, "Share of the budget; 0: all, with --quick a tenth.")
    cli.run(main)
