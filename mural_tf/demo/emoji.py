"""The emoji benchmark: real pictures, captions and translations in a hundred languages, small enough for a CPU.

    python -m mural_tf emoji --output=data/emoji --languages=core

Pictures are emoji in four drawing styles, captions their Unicode CLDR names. As in MURAL (Jain et al., 2021),
languages are unequal: training captions exist for all emoji in the well-resourced languages and for 3% of the emoji
in every other language, while translation pairs exist for all of them.

    image_text/train   one record per emoji and training style (Noto, Twemoji, OpenMoji): its captions in all
                       languages that have a caption for this emoji in training; the same captions in all three styles
    image_text/test    1,000 EmojiOne drawings chosen by a fixed hash, with their names in all languages
    image_text/dev     the other EmojiOne drawings, likewise
    text_pairs/train   English with every other language: all emoji names, and the names of languages, territories,
                       scripts and language variants where they differ from English

What is unseen in dev and test is the *drawing style*: the same emoji, drawn otherwise, and their names are part of
training by design, so the benchmark measures how pictures generalise over styles and captions over languages, and
not how captions generalise over concepts. A build with *held-out names* asks that too: for a fifth of the test's emoji
only the well-resourced languages have a translation pair or a training caption, and evaluation measures separately how
well their names find the pictures. In a build with *one language* a training picture has captions in only one language,
chosen by a hash, as in Globetrotter's data (Surís et al., 2022): only pictures connect two languages. A build with
*more styles* is trained on 2,759 further drawings, of Fluent Emoji Flat and of the first Noto Emoji.

Left out: the category "Component", skin-tone variants, and emoji that lack an English name or one of the three training
drawings. A data set is a local folder (`data/records.py` has its format), and the same settings give the same bytes:
every choice is by the SHA-256 of a text, so that it does not depend on the order of files, the platform or a random
generator's version.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import io
import json
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from ml_collections import ConfigDict
from PIL import Image

from mural_lite.dataset_folder import is_built
from mural_lite.errors import UserError, install_extra
from mural_lite.files import as_path
from mural_lite.pictures import on_white
from mural_lite.progress import tqdm
from mural_lite.record_format import IMAGE_TEXT, TEXT_PAIRS, ImageTextRecord, TextPair
from mural_tf.data.dataset_builder import build_folder, count_records
from mural_tf.demo.npm_packages import Package, fetch_packages, read_members

WELL_RESOURCED = tuple("en de fr cs ja zh ru pl tr".split())  # MURAL (Jain et al., 2021) appendix A.3
# [MURAL]'s group where CLDR names emoji (tg uz ga be; not mg ceb ht war), and others with little text.
UNDER_RESOURCED = tuple("tg uz ga be am km si yo zu sw mt lb rw xh ka my".split())
CORE = WELL_RESOURCED + UNDER_RESOURCED
LANGUAGE_GROUPS = {"well-resourced": WELL_RESOURCED, "under-resourced": UNDER_RESOURCED}

BUILDS = ("core", "all", "core_names", "all_names", "core_styles", "all_styles")  # values of `data.emoji`

FORMAT_VERSION = 1  # raised whenever the same settings would give other bytes
TEST_IMAGES = 1000  # the pool size of Flickr30K and XTD
CAPTION_SHARE = 0.03  # share of the emoji with captions in languages that are not well-resourced
HELD_OUT_SHARE = 0.2  # share of the test's emoji, in a build with held-out names

Names = dict[str, dict[str, "EmojiName"]]  # {language: {emoji key: name}}

DOWNLOADS = "data/emoji_packages"  # of this machine, where runs keep the packages
PACKAGES = (
    Package(
        "emoji-datasource-google",
        "16.0.0",
        "sha512-ZRexfzs7MVoLnmzZmNsO4TKhnAJp5D++Vm6PpUpH/jEQQlemp3l88CjZ+DoZ2faM9R4QxZkOPJCoT8DlPhfQ3A==",
        size=74_344_091,
        license="Apache-2.0",  # of the drawings, Noto Emoji
    ),
    Package(
        "emoji-datasource-twitter",
        "16.0.0",
        "sha512-7F+uCuHH+7Qnrc15P5tnbvKkg9E6tlzi4MnT2uW1RlN4pLYTza6cP/dstIfSDMtpjFLWuZewWg8jBbuL2eyELQ==",
        size=61_683_754,
        license="CC-BY-4.0",  # of the drawings, Twemoji
    ),
    Package(
        "openmoji",
        "17.0.0",
        "sha512-EBnYrNGdcdw+OSXmENeNE1yBNRu6tOraTmoOyUbJkTmvT/+XETp8RZLSJFzD3lrPc5N9CzsyPnRTk0Vp4UaI9w==",
        size=4_339_458,
        license="CC-BY-SA-4.0",
    ),
    Package(
        "emojione",
        "2.2.7",
        "sha512-Gbf8qysc34+TFUS5HPwOUY62v8gjLuPmfVTWUR/zirULSYUe/D3MrvYo0W5Y2gScF1YI7EBe5t81IbD8q144Ag==",
        size=94_196_568,
        license="CC-BY-4.0",  # of the drawings
    ),
    Package(
        "cldr-annotations-full",
        "48.2.0",
        "sha512-DV7A+rEcgUSNTRsVGNGqBZRmAkGfwhGHO5Q1dRwzBoBnVrHWp804JP7/QJdEc66iHmx3+zLWVIMCFLm0lW7PUQ==",
        size=6_537_823,
        license="Unicode-3.0",
    ),
    Package(
        "cldr-annotations-derived-full",
        "48.2.0",
        "sha512-log62km+AOzI7n/NEuNNFV0mg9DWnt67EYCh1RwxZq9dyRuyteB586LT83Ke8TchEfnwI9cIk2P31zO4nTvZmw==",
        size=4_233_628,
        license="Unicode-3.0",
    ),
    Package(
        "cldr-localenames-full",
        "48.2.0",
        "sha512-4o0paYDz0UXhfhChAVFkmVl2CP0YTSEqE6WrC0fNafaSC5u5DAXphxH3SZ1Ujczarikr8DToKZfiok6EqWLdNQ==",
        size=1_958_951,
        license="Unicode-3.0",
    ),
)


@dataclasses.dataclass(frozen=True)
class Variant:
    """The contents of a build of the benchmark.

    Args:
      languages: "core" (the 25 of `LANGUAGE_GROUPS`) or "all" (every locale that names half of the emoji, 122).
      seed: chooses the 3% of emoji per language, and the order of records; the test images do not depend on it.
      keyword_captions: whether CLDR's keywords, joined with ", ", are a training caption, too, of caption group
        "<emoji>:keywords", wherever the name is one.
      held_out_names: whether names are left out of training, see above; the choice does not depend on the seed.
      one_language: whether each emoji has training captions in only one language.
      more_styles: whether there are also training drawings of `MORE_STYLES`, for the emoji that these draw.
      locale_names: whether names of languages, territories, scripts and variants are text pairs, too.

    Raises `UserError` for unknown `languages`.
    """

    languages: str = "core"
    seed: int = 0
    keyword_captions: bool = False
    held_out_names: bool = False
    one_language: bool = False
    locale_names: bool = True
    more_styles: bool = False

    def __post_init__(self) -> None:
        if self.languages not in ("core", "all"):
            raise UserError(f"languages must be 'core' or 'all', not {self.languages!r}.")

    def settings(self) -> dict:
        """Returns the settings in `dataset.json`: the first three fields, and other fields that are not the default.

        So a new field leaves the identity of older data sets as it was.
        """
        settings = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("languages", "seed", "keyword_captions") or value != field.default:
                settings[field.name] = value
        return settings


def build(data: ConfigDict) -> None:
    """Builds the benchmark that a configuration's branch `data` describes; `data.source="emoji"` leads here.

    `data.emoji` is one of `BUILDS`: languages without a suffix; "_names" leaves names of languages and places out, and
    "_styles" does so and adds drawing styles. Raises `UserError` for another text, and as `build_emoji`.
    """
    if data.emoji not in BUILDS:
        raise UserError(f"Unknown data.emoji {data.emoji!r}: expected one of {', '.join(BUILDS)}.")
    languages, _, suffix = data.emoji.partition("_")
    variant = Variant(languages, locale_names=not suffix, more_styles=suffix == "styles")
    build_emoji(data.directory, DOWNLOADS, variant)


def build_emoji(
    output: str | pathlib.Path,
    cache: str | pathlib.Path,
    variant: Variant = Variant(),  # noqa: B008 (frozen)
    progress: bool = True,
    *,
    packages: Sequence[Package] | None = None,
    fetch: Callable[[Package, pathlib.Path], pathlib.Path] | None = None,
) -> pathlib.Path:
    """Builds the benchmark into the folder `output`, unless it is there already, and returns that folder.

    Args:
      output: a folder, here or in a store, that does not exist yet, is empty, or holds this data set of the same
        variant. It appears when it is complete.
      cache: folder for the packages (250 MB), which every build can share.
      variant: the contents of the build.
      progress: whether to show bars.
      packages: the packages, for tests; `None`: the packages of the variant.
      fetch: as in `fetch_packages`, for tests and mirrors.

    Raises:
      UserError: the network, the npm client or resvg-py is missing, a package is damaged, the disk is full, or `output`
        holds anything else.
    """
    output = as_path(output)
    if packages is None:
        packages = list(PACKAGES)
        if variant.more_styles:
            packages += [icons.package for icons in MORE_STYLES]
    versions = {package.name: {"version": package.version, "license": package.license} for package in packages}
    identity = {
        "name": "emoji",
        "format_version": FORMAT_VERSION,
        "settings": variant.settings(),
        "packages": versions,
    }
    if is_built(output, identity):
        return output
    tarballs = fetch_packages(packages, cache, fetch, progress)
    return build_folder(output, identity, lambda folder: _write(folder, tarballs, variant, progress))


def _write(folder: pathlib.Path, tarballs: dict[str, pathlib.Path], variant: Variant, progress: bool) -> dict:
    """Writes all records of a variant into `folder` and returns their description for `dataset.json`.

    `tarballs` are {package's name: its tarball}.
    """
    from mural_tf.data.records import write_records  # with TensorFlow, which configurations do without

    sources = _read_sources(tarballs, variant, progress)
    test, dev = split_test(sources.emoji & sources.drawings[TEST_STYLE.name].keys())
    held_out = set()
    if variant.held_out_names:
        held_out = choose_held_out(test)
    captions = without_held_out(captioned_in_training(sources.names, variant.seed), held_out)
    if variant.one_language:
        captions = one_language_each(captions, variant.seed)
    image_text = {
        "train": image_text_records(
            sources.drawings, sources.training_styles, captions, variant.seed, variant.keyword_captions
        ),
        "dev": image_text_records(sources.drawings, [TEST_STYLE], restricted(sources.names, dev), variant.seed),
        "test": image_text_records(sources.drawings, [TEST_STYLE], restricted(sources.names, test), variant.seed),
    }
    pairs = text_pairs(without_held_out(sources.names, held_out), sources.locale_names, variant.seed)
    total = sum(map(len, image_text.values())) + len(pairs)
    with tqdm(total=total, unit="record", disable=not progress) as bar:
        bar.set_description("Writing")
        for split, records in image_text.items():
            shards = 4 if split == "train" else 1  # which input pipelines divide
            write_records(folder, IMAGE_TEXT, split, _with_progress(records, bar), shards=shards)
        write_records(folder, TEXT_PAIRS, "train", _with_progress(pairs, bar), shards=4)
    description = count_records(sources.languages, image_text, pairs)
    description["language_groups"] = {name: list(members) for name, members in LANGUAGE_GROUPS.items()}
    if held_out:
        description["held_out_names"] = sorted(f"{TEST_STYLE.name}/{key}" for key in held_out)
    return description


@dataclasses.dataclass(frozen=True)
class _Sources:
    """The parts of the packages that a variant uses.

    Attributes:
      emoji: the keys of the emoji that every training style draws.
      languages: the languages of the variant.
      names: {language: {emoji key: name}}, of these languages and emoji.
      locale_names: {language: {"languages:de" or the like: name}}, as `read_locale_names` returns them; {language: {}}
        where the variant leaves them out.
      training_styles: the styles of the training's drawings.
      drawings: {style's name: {emoji key: PNG}}, of the training's and the test's styles.
    """

    emoji: set[str]
    languages: list[str]
    names: Names
    locale_names: dict[str, dict]
    training_styles: list
    drawings: dict[str, dict]


def _read_sources(tarballs: dict[str, pathlib.Path], variant: Variant, progress: bool) -> _Sources:
    """Returns the names and drawings of a variant, from the packages; `tarballs` are {package's name: its tarball}."""
    annotations = tarballs["cldr-annotations-full"], tarballs["cldr-annotations-derived-full"]
    names = read_emoji_names(*annotations, variant.languages)
    emoji = _listed_emoji(tarballs["emoji-datasource-google"]) & names["en"].keys()
    more_styles = MORE_STYLES if variant.more_styles else ()
    styles = [(style, tarballs[style.package]) for style in [*TRAINING_STYLES, TEST_STYLE]]
    styles += [(icons, tarballs[icons.package.name]) for icons in more_styles]
    drawings = draw_all(styles, _with_keys(names["en"], emoji), progress)
    emoji = emoji.intersection(*(drawings[style.name] for style in TRAINING_STYLES))
    languages = choose_languages(variant.languages, names, emoji)
    locale_names = read_locale_names(tarballs["cldr-localenames-full"], languages)
    if not variant.locale_names:
        locale_names = dict.fromkeys(languages, {})
    return _Sources(
        emoji=emoji,
        languages=languages,
        names=restricted({language: names[language] for language in languages}, emoji),
        locale_names=locale_names,
        training_styles=[*TRAINING_STYLES, *more_styles],
        drawings=drawings,
    )


def _with_progress(records: Sequence, bar: tqdm) -> Iterator:
    """Yields the records, and moves the bar by one with each of them."""
    for record in records:
        yield record
        bar.update()


def _listed_emoji(tarball: pathlib.Path) -> set[str]:
    """Returns the keys of the emoji in the package's emoji.json, without the category "Component".

    Its entries do not include variants of skin tones. Raises `UserError` for a damaged file.
    """
    members = read_members(tarball, lambda path: path == "emoji.json")
    entries = parse_json(members.get("emoji.json", b""), tarball, "emoji.json")
    return {key_of_code_points(entry["unified"]) for entry in entries if entry["category"] != "Component"}


def split_test(emoji: set[str]) -> tuple[set[str], set[str]]:
    """Divides emoji keys into (test, dev), the same for every seed: test has `TEST_IMAGES` keys of smallest hash."""
    ranked = sorted(emoji, key=lambda key: _hash("test", key))
    return set(ranked[:TEST_IMAGES]), set(ranked[TEST_IMAGES:])


def choose_held_out(test: set[str]) -> set[str]:
    """Returns the share `HELD_OUT_SHARE` of the test's emoji keys, the keys of smallest hash."""
    ranked = sorted(test, key=lambda key: _hash("held out", key))
    return set(ranked[: round(HELD_OUT_SHARE * len(test))])


def without_held_out(names: Names, held_out: set[str]) -> Names:
    """Returns the names of all emoji but `held_out`, and of all emoji in well-resourced languages."""
    trained_names = restricted(names, set().union(*names.values()) - held_out)
    for language in WELL_RESOURCED:
        if language in names:
            trained_names[language] = names[language]
    return trained_names


def captioned_in_training(names: Names, seed: int) -> Names:
    """Returns the names that are training captions: all in well-resourced languages, 3% (at least 1) in others.

    Each language draws its own 3% of the emoji that it names, by the seed and independently of the other languages.
    """
    captions = {}
    for language, texts in names.items():
        keys = sorted(texts, key=lambda key: _hash("caption", seed, language, key))
        if language not in WELL_RESOURCED:
            keys = keys[: max(1, round(CAPTION_SHARE * len(keys)))]
        captions[language] = {key: texts[key] for key in keys}
    return captions


def one_language_each(captions: Names, seed: int) -> Names:
    """Returns each emoji's caption in only one of its languages, the language of smallest hash (with the seed)."""
    hashed_languages = collections.defaultdict(list)  # {emoji key: [(hash, language with its caption)]}
    for language, names in captions.items():
        for key in names:
            hashed_languages[key].append((_hash("language", seed, language, key), language))
    emoji_of_languages = collections.defaultdict(set)  # {language: its emoji keys}
    for key, candidates in hashed_languages.items():
        _, chosen_language = min(candidates)
        emoji_of_languages[chosen_language].add(key)
    return {language: _with_keys(names, emoji_of_languages[language]) for language, names in captions.items()}


def restricted(names: Names, emoji: set[str]) -> Names:
    """Returns the names of the emoji with these keys, in all languages."""
    return {language: _with_keys(texts, emoji) for language, texts in names.items()}


def _with_keys(names: dict[str, EmojiName], emoji: set[str]) -> dict[str, EmojiName]:
    """Returns {emoji key: name} for the keys `emoji` only, in the order of `names`, which are one language's."""
    return {key: name for key, name in names.items() if key in emoji}


def image_text_records(
    drawings: dict[str, dict[str, bytes]],
    styles: Sequence[DrawingStyle | IconSet],
    captions: Names,
    seed: int,
    keyword_captions: bool = False,
) -> list[ImageTextRecord]:
    """Returns one record per captioned emoji and style that draws it, in an order drawn from the seed.

    `image_id` is "<style>/<emoji>", the caption groups "<emoji>:name" and "<emoji>:keywords".

    Args:
      drawings: {style's name: {emoji key: PNG}}.
      styles: the styles of the records.
      captions: the names that are captions, {language: {emoji key: name}}.
      seed: the seed.
      keyword_captions: whether an emoji's keywords in a language, joined with ", ", are a caption, too.
    """
    captions_of_emoji = collections.defaultdict(list)  # {emoji key: [(caption, language, caption group)]}
    for language, names in captions.items():
        for key, name in names.items():
            captions_of_emoji[key].append((name.name, language, f"{key}:name"))
            keywords = ", ".join(name.keywords)
            if keyword_captions and keywords not in ("", name.name):
                captions_of_emoji[key].append((keywords, language, f"{key}:keywords"))
    records = []
    for style in styles:
        for key, rows in captions_of_emoji.items():
            if key in drawings[style.name]:
                texts, languages, groups = zip(*rows)
                records.append(
                    ImageTextRecord(f"{style.name}/{key}", drawings[style.name][key], texts, languages, groups)
                )
    return sorted(records, key=lambda record: _hash("order", seed, record.image_id))


def text_pairs(names: Names, locale_names: dict[str, dict[str, str]], seed: int) -> list[TextPair]:
    """Returns pairs of English and every other language, in an order drawn from the seed.

    They are all emoji names (group "<emoji>:name"), and the locale names that differ from English (group
    "languages:de"): a name that does not differ was left untranslated.

    Args:
      names: {language: {emoji key: name}}.
      locale_names: {language: {"languages:de" or the like: name}}, as `read_locale_names` returns them.
      seed: the seed.
    """
    pairs = []
    for language, emoji_names in names.items():
        if language == "en":
            continue
        for key, name in emoji_names.items():
            pairs.append(TextPair(names["en"][key].name, "en", name.name, language, f"{key}:name"))
        for code, locale_name in locale_names[language].items():
            english = locale_names["en"].get(code)
            if english is not None and english != locale_name:
                pairs.append(TextPair(english, "en", locale_name, language, code))
    return sorted(pairs, key=lambda pair: _hash("order", seed, pair.language_b, pair.group_id))


def _hash(*parts: object) -> bytes:
    """Returns the SHA-256 of the parts, written with tabs between them, by which everything is chosen and ordered."""
    text = "\t".join(map(str, parts))
    return hashlib.sha256(text.encode("utf-8")).digest()


# Names, out of the Unicode CLDR packages. CLDR's annotations hold, per locale and emoji, `tts`, the short name that we
# use as caption, and `default`, keywords. A locale is one folder there and keeps CLDR's tag as its language, whether
# it is a bare language ("sr"), a script of it ("sr-Latn", "zh-Hant") or a region ("pt-PT"). Every locale counts with
# the names it gives itself: a region's folder holds only names that differ from its parent's, and nothing is
# inherited. By this count, 100 locales name at least 90% of the emoji and 122 at least half.

_LOCALE_NAME_KINDS = ("languages", "territories", "scripts", "variants")
_VARIATION_SELECTOR = 0xFE0F  # "draw it as emoji"; packages disagree on where to write it, so keys never have it


@dataclasses.dataclass(frozen=True)
class EmojiName:
    """One locale's name and keywords of one emoji."""

    name: str
    keywords: tuple[str, ...]


@functools.cache  # every locale asks for the same few thousand
def key_of_text(emoji: str) -> str:
    """Returns the emoji's key: code points as lower-case hex, joined by "-", without U+FE0F ("2764" for ❤️)."""
    return _key(map(ord, emoji))


def key_of_code_points(code_points: str) -> str:
    """Returns `key_of_text` of an emoji by its code points, as in a file's name: "0023-20e3" for "0023-FE0F-20E3"."""
    return _key(int(point, 16) for point in code_points.split("-"))


def _key(code_points: Iterable[int]) -> str:
    """Returns the key of an emoji's code points, as `key_of_text` describes it."""
    return "-".join(f"{point:04x}" for point in code_points if point != _VARIATION_SELECTOR)


def read_emoji_names(annotations: pathlib.Path, derived: pathlib.Path, languages: str = "all") -> Names:
    """Returns {locale: {emoji key: name}} from CLDR's annotations.

    A name that CLDR's JSON holds in two pieces (it was written with "|" between them) is joined with ", ".

    Args:
      annotations: the tarball of single emoji.
      derived: the tarball of composed emoji (flags, keycaps, families); no emoji is in both.
      languages: "core" for only the locales of the two groups, "all" for every locale.
    """
    names: Names = {}
    for tarball, folder in ((annotations, "annotations"), (derived, "annotationsDerived")):
        is_wanted = functools.partial(_is_locale_file, folder=folder, names=("annotations.json",))
        for path, content in read_members(tarball, is_wanted).items():
            _, locale, _ = path.split("/")
            if languages == "core" and locale not in CORE:
                continue
            locale_names = names.setdefault(locale, {})
            annotated = parse_json(content, tarball, path)[folder].get("annotations", {})
            for emoji, entry in annotated.items():
                if entry.get("tts"):
                    name = ", ".join(entry["tts"])
                    keywords = tuple(entry.get("default", ()))
                    locale_names.setdefault(key_of_text(emoji), EmojiName(name, keywords))
    return names


def read_locale_names(localenames: pathlib.Path, locales: list[str]) -> dict[str, dict[str, str]]:
    """Returns {locale: {"languages:de" or the like: name in that locale}} for `locales`, from CLDR's tarball.

    The names are of languages, territories, scripts and variants. An entry that only repeats its code is not a name.
    """
    files = tuple(f"{group}.json" for group in _LOCALE_NAME_KINDS)
    is_wanted = functools.partial(_is_locale_file, folder="main", names=files)
    names: dict[str, dict[str, str]] = {locale: {} for locale in locales}
    for path, content in sorted(read_members(localenames, is_wanted).items()):
        _, locale, file_name = path.split("/")
        group = file_name.removesuffix(".json")
        if locale in names:
            display_names = parse_json(content, localenames, path)["main"][locale]["localeDisplayNames"]
            entries = display_names.get(group, {})
            names[locale].update({f"{group}:{code}": name for code, name in entries.items() if name != code})
    return names


def choose_languages(languages: str, names: Names, emoji: set[str]) -> list[str]:
    """Returns the build's languages in a fixed order: well-resourced, under-resourced, others by tag.

    Args:
      languages: "core" for the two groups; "all" for these and every locale that itself names at least half of `emoji`.
      names: {locale: {emoji key: name}}.
      emoji: the build's emoji keys.

    Raises:
      UserError: `languages` is another text.
    """
    if languages == "core":
        return list(CORE)
    if languages == "all":
        others = []
        for locale, locale_names in names.items():
            if locale not in CORE and 2 * len(emoji & locale_names.keys()) >= len(emoji):
                others.append(locale)
        return [*CORE, *sorted(others)]
    raise UserError(f"languages must be 'core' or 'all', not {languages!r}.")


def parse_json(content: bytes, tarball: pathlib.Path, path: str) -> dict:
    """Returns the parsed `content` of the file `path` in a tarball; raises `UserError` if it is not JSON."""
    try:
        return json.loads(content)
    except ValueError as error:
        raise UserError(f"{tarball}: {path} is not valid JSON ({error}).") from None


def _is_locale_file(path: str, folder: str, names: tuple[str, ...]) -> bool:
    """Whether a path is `folder`/<locale>/<one of `names`>."""
    parts = path.split("/")
    return len(parts) == 3 and parts[0] == folder and parts[2] in names


# The drawing styles, as 64 x 64 RGB PNGs on white. EmojiOne, never seen in training, is for dev and test.

IMAGE_SIZE = 64  # pixels
_ZERO_WIDTH_JOINER = "-200d"  # in a key


@dataclasses.dataclass(frozen=True)
class DrawingStyle:
    """Where a package keeps one style's drawings: in files `folder`/<code points>`suffix`.

    Attributes:
      name: the style's name.
      package: the package's name.
      folder: below the package's top folder.
      suffix: ".png" or ".svg".
      joined: whether files' names have the zero width joiner.
    """

    name: str
    package: str
    folder: str
    suffix: str
    joined: bool = True

    def read(self, tarball: pathlib.Path, names: dict[str, EmojiName]) -> dict[str, bytes]:
        """Returns {emoji key: the drawing's file, PNG or SVG} for the emoji of `names` that the package draws."""
        by_file_key = {}  # {key in a file's name: emoji key}
        for key in names:
            key_in_file = key if self.joined else key.replace(_ZERO_WIDTH_JOINER, "")
            by_file_key[key_in_file] = key

        def file_key(path: str) -> str | None:
            """Returns the key in a file's name; `None` for any other file."""
            folder, _, name = path.rpartition("/")
            if folder != self.folder or not name.endswith(self.suffix):
                return None
            try:
                return key_of_code_points(name[: -len(self.suffix)])
            except ValueError:  # a name that is not code points, like 2764-red.svg
                return None

        members = read_members(tarball, lambda path: file_key(path) in by_file_key)
        return {by_file_key[file_key(path)]: content for path, content in members.items()}


@dataclasses.dataclass(frozen=True)
class IconSet:
    """A style of Iconify, whose package has all drawings in one file, by their English names: {"barber-pole": …}."""

    name: str
    package: Package
    suffix: str = ".svg"

    def read(self, tarball: pathlib.Path, names: dict[str, EmojiName]) -> dict[str, bytes]:
        """Returns {emoji key: the drawing as SVG} for the emoji of `names`, English, that the package draws."""
        members = read_members(tarball, lambda path: path == "icons.json")
        entries = parse_json(members.get("icons.json", b""), tarball, "icons.json")
        side = entries.get("width", 16)  # a square's; 16 is Iconify's default
        drawings = {}
        for key, name in names.items():
            icon = entries["icons"].get(_icon_name(name.name))
            if icon is not None:
                box = f'viewBox="0 0 {icon.get("width", side)} {icon.get("height", side)}"'
                drawings[key] = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{icon["body"]}</svg>'.encode()
        return drawings


def _icon_name(name: str) -> str:
    """Returns the English name of an emoji as Iconify writes it: "woman’s hat" is "womans-hat"."""
    without_apostrophes = re.sub("['’]", "", name.lower())
    return re.sub("[^a-z0-9]+", "-", without_apostrophes).strip("-")


TRAINING_STYLES = (
    DrawingStyle("noto", "emoji-datasource-google", "img/google/64", ".png"),
    DrawingStyle("twemoji", "emoji-datasource-twitter", "img/twitter/64", ".png"),
    DrawingStyle("openmoji", "openmoji", "color/svg", ".svg"),
)
TEST_STYLE = DrawingStyle("emojione", "emojione", "assets/png", ".png", joined=False)
MORE_STYLES = (
    IconSet(
        "fluent",
        Package(
            "@iconify-json/fluent-emoji-flat",
            "1.2.6",
            "sha512-RY47RgPb47fYUiyrA64sIOL0+UU02s29sXpNBbIQRBUlPlfNFTKUmZDERGuxDs/7yNGWqQYvuaSYM1M4fRXlUw==",
            size=1_172_438,
            license="MIT",
        ),
    ),
    IconSet(
        "noto_v1",
        Package(
            "@iconify-json/noto-v1",
            "1.2.5",
            "sha512-/DsVMius69Q0fRS53z7QK1TROSuar606jiIx+laXtdsYGMXpf6LtHBx6CGfoo3UHHb/XpBsw+1L1x3eyPqMuVA==",
            size=1_587_591,
            license="Apache-2.0",
        ),
    ),
)


def draw_all(
    styles: list[tuple[DrawingStyle | IconSet, pathlib.Path]], names: dict[str, EmojiName], progress: bool = True
) -> dict[str, dict[str, bytes]]:
    """Draws the emoji of some names in several styles, and shows a bar meanwhile.

    Args:
      styles: [(style, its package's tarball)].
      names: {emoji key: English name}.
      progress: whether to show a bar.

    Returns:
      {style's name: {emoji key: PNG, as `draw` makes it}}, for the emoji that a style draws.

    Raises:
      UserError: a drawing is damaged, or resvg-py is missing.
    """
    files_by_style = {style.name: style.read(tarball, names) for style, tarball in styles}
    drawings: dict[str, dict[str, bytes]] = {}
    total = sum(map(len, files_by_style.values()))
    with tqdm(total=total, desc="Drawing emoji", unit="drawing", disable=not progress) as bar:
        for style, tarball in styles:
            drawings[style.name] = {}
            for key, content in files_by_style[style.name].items():
                try:
                    drawings[style.name][key] = draw(content, style.suffix)
                except (OSError, ValueError) as error:
                    raise UserError(f"{tarball}: the drawing of {key} cannot be read ({error}).") from None
                bar.update()
    return drawings


def draw(content: bytes, suffix: str) -> bytes:
    """Returns a drawing as a 64 x 64 RGB PNG, its transparent pixels on white.

    Args:
      content: the bytes of a PNG or SVG.
      suffix: ".png" or ".svg", for which `UserError` is raised where resvg-py is missing.
    """
    if suffix == ".svg":
        content = _render_svg(content)
    with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
        rgba = image.convert("RGBA")  # also from palettes and grey with transparency
    if rgba.size != (IMAGE_SIZE, IMAGE_SIZE):
        rgba = rgba.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    on_white(rgba).save(buffer, format="PNG")
    return buffer.getvalue()


def _render_svg(content: bytes) -> bytes:
    """Returns an SVG as a PNG with sides of `IMAGE_SIZE` pixels; raises `UserError` where resvg-py is not installed."""
    try:
        import resvg_py
    except ImportError:
        raise UserError(
            f"Drawing OpenMoji's SVG files needs resvg-py, which is not installed: run {install_extra('demo')}."
        ) from None
    svg = content.decode("utf-8")
    rendered = resvg_py.svg_to_bytes(svg_string=svg, width=IMAGE_SIZE, height=IMAGE_SIZE, skip_system_fonts=True)
    return bytes(rendered)  # early releases return a list of integers
