"""Texts translated word by word, with a dictionary that the text pairs themselves hold.

    pip install nltk
    python -m benchmarks.word_by_word data/mine data/mine_words sw,am      # or of every language with pairs

It has not helped so far: `docs/results/word_by_word.csv`. `configs/translated.py:words=FOLDER` trains on such texts.

A translation pair teaches a text tower its phrase, and hardly the words: of names whose words were all translated in
other names it finds few. Here every text of the pivot language is written in another language, word for word, however
odd its grammar, so that words are met in thousands of phrases. Duan et al., "Bilingual Dictionary Based Neural Machine
Translation without Using Parallel Sentences" (2020), and Wang et al., "Expanding Pretrained Models to Thousands More
Languages via Lexicon-based Adaptation" (2022), train on such texts with given dictionaries. Here IBM Model 1
(Brown et al., 1993), by NLTK, finds one in the pairs.

The pairs that are written keep the group of the text that they translate; `data.sources` mixes them with the real
pairs.
"""

from __future__ import annotations

import collections
import hashlib
import heapq
import pathlib
import random
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from mural_lite.dataset_folder import DESCRIPTION
from mural_lite.errors import UserError
from mural_lite.files import as_path, json_field, read_json
from mural_lite.text_files import canonical_language
from mural_tf.data.dataset_builder import build_folder

ITERATIONS = 5  # of expectation maximisation
LEAST = 0.05  # p(word | pivot's word) · p(pivot's word | word) of an entry
KNOWN = 0.5  # share of a text's words that the dictionary must have

Entry = tuple[list[str], list[float]]  # the words that a word may become, and their weights


def words_of(text: str) -> list[str]:
    """Returns a text's words between spaces, in lower case, without the punctuation around them."""
    words = map(_stripped, text.casefold().split())
    return [word for word in words if word]


def _stripped(word: str) -> str:
    """Returns a word without the punctuation and symbols at its ends, "" if it has no other characters."""
    positions = [index for index, character in enumerate(word) if unicodedata.category(character)[0] not in "PS"]
    if not positions:
        return ""
    return word[positions[0] : positions[-1] + 1]


def learn_dictionary(pairs: Sequence[tuple[str, str]]) -> dict[str, Entry]:
    """Returns {word of the texts: (its translations, their weights)}, the best translation first.

    A weight is p(f | e) · p(e | f) by IBM Model 1 in both directions: high where each is the other's translation in
    most pairs, and low for words that accompany every word. Translations with a weight below `LEAST` are left out.

    Args:
      pairs: (text, its translation) of each pair, all in the same two languages.

    Raises:
      UserError: NLTK is not installed.
    """
    try:
        from nltk.translate import AlignedSent, IBMModel1
    except ImportError:
        raise UserError("The dictionary needs NLTK, which is not installed: pip install nltk.") from None
    sides = [(words_of(text), words_of(translation)) for text, translation in pairs]
    sides = [(e, f) for e, f in sides if e and f]  # with words on both sides
    if not sides:
        return {}
    forward = IBMModel1([AlignedSent(f, e) for e, f in sides], ITERATIONS).translation_table  # [f][e]: p(f | e)
    backward = IBMModel1([AlignedSent(e, f) for e, f in sides], ITERATIONS).translation_table  # [e][f]: p(e | f)
    candidates = collections.defaultdict(list)  # {word: [(-weight, translation)]}, to be sorted by both
    for translation, probabilities in forward.items():
        for word, probability in probabilities.items():
            if word is not None:  # None means "from no word"
                weight = round(probability * backward[word][translation], 6)  # the same on every run
                if weight >= LEAST:
                    candidates[word].append((-weight, translation))
    dictionary = {}
    for word, weighted in candidates.items():
        weighted.sort()
        translations = [translation for _, translation in weighted]
        weights = [-negative_weight for negative_weight, _ in weighted]
        dictionary[word] = (translations, weights)
    return dictionary


def translate_words(text: str, dictionary: dict[str, Entry], copies: int, seed: str) -> list[str]:
    """Returns up to `copies` different translations of a text, word by word.

    Each word becomes a random translation, drawn by weight; words that the dictionary lacks are left out. About half of
    the translations are in reverse order, because languages differ in the order of words.

    Args:
      text: the text in the pivot language.
      dictionary: see `learn_dictionary`; [] is returned if it has fewer than `KNOWN` of the text's words.
      copies: how often the text is translated; equal translations count once.
      seed: the seed of the draws.
    """
    words = words_of(text)
    entries = [dictionary[word] for word in words if word in dictionary]
    if not entries or len(entries) < KNOWN * len(words):
        return []
    generator = random.Random(seed)
    translations: dict[str, None] = {}  # in order, each once
    for _ in range(copies):
        translated = []
        for candidates, weights in entries:
            translated += generator.choices(candidates, weights)
        if generator.random() >= 0.5:
            translated.reverse()
        translations[" ".join(translated)] = None
    return list(translations)


class Sample:
    """A random sample of at most `size` of the different items that are added.

    It holds the items with the least hashes, so neither the order in which they are added nor repetition matters.
    """

    def __init__(self, size: int):
        self._size = size
        self._kept: set[tuple[str, ...]] = set()
        self._largest: list[tuple[int, tuple[str, ...]]] = []  # a heap of (-hash, item)
        self._is_whole = True

    def add(self, item: tuple[str, ...]) -> None:
        """Adds an item; the item with the largest hash is dropped if there are more than `size`."""
        if item in self._kept:
            return
        hashed = int.from_bytes(hashlib.blake2b("\0".join(item).encode(), digest_size=8).digest(), "big")
        self._kept.add(item)
        heapq.heappush(self._largest, (-hashed, item))
        if len(self._kept) > self._size:
            _, largest = heapq.heappop(self._largest)
            self._kept.remove(largest)
            self._is_whole = False

    def items(self) -> list[tuple[str, ...]]:
        """Returns the items that are kept, sorted."""
        return sorted(self._kept)

    def distinct_count(self) -> int:
        """Returns how many different items were added: an estimate from the largest kept hash if some were dropped."""
        if self._is_whole:
            return len(self._kept)
        negative_hash, _ = self._largest[0]
        return round(len(self._kept) * 2**64 / -negative_hash)  # hashes are spread evenly over 64 bits


def build_word_by_word(
    data_dir: str | pathlib.Path,
    output: str | pathlib.Path,
    languages: Sequence[str] = (),
    pivot: str = "en",
    copies: int = 4,
    max_pairs: int = 20_000,
    max_texts: int = 100_000,
    seed: int = 0,
) -> pathlib.Path:
    """Writes text pairs of the pivot's texts and their translations word by word, and returns the folder of the pairs.

    Args:
      data_dir: a data folder with text pairs, one side of which is in the pivot language.
      output: the folder to write, see `build_folder`.
      languages: languages into which texts are translated, in BCP 47; empty: all that have pairs with the pivot.
      pivot: the language whose texts are translated: the texts of all its pairs with any language.
      copies: translations of each text, in each language; equal translations are written once.
      max_pairs: pairs from which a language's dictionary is learnt, held in memory; more are sampled by hash.
      max_texts: texts that are translated; more are sampled by hash.
      seed: the seed of the words that are drawn.

    Raises:
      UserError: no such pairs, a language without any, NLTK is not installed, or `output` holds something else.
    """
    data_dir = as_path(data_dir)
    pivot = canonical_language(pivot)
    languages = list(dict.fromkeys(map(canonical_language, languages)))
    settings = dict(languages=languages, pivot=pivot, copies=copies, max_pairs=max_pairs, max_texts=max_texts,
                    seed=seed)  # fmt: skip
    identity = {"name": "word by word", "data_dir": str(data_dir), "settings": settings}
    return build_folder(output, identity, lambda folder: _write_pairs(folder, data_dir, settings))


def _write_pairs(folder: pathlib.Path, data_dir: pathlib.Path, settings: dict) -> dict:
    """Writes the text pairs of `build_word_by_word` into a folder, and returns the entries of `dataset.json`.

    `settings`: {name of an argument of `build_word_by_word`: value}. Raises `UserError` as `build_word_by_word`.
    """
    from mural_lite.progress import tqdm
    from mural_tf.data import records

    pivot = settings["pivot"]
    texts, pairs = _sample_texts_and_pairs(data_dir, settings)
    languages = settings["languages"] or sorted(pairs)
    missing = [language for language in languages if language not in pairs]
    if missing:
        raise UserError(f"No text pairs of {pivot} and {', '.join(missing)} in {data_dir}; there are {_listed(pairs)}.")
    sampled_texts = texts.items()
    dictionaries = {}  # {language: facts about its dictionary}
    counts: collections.Counter[str] = collections.Counter()  # {language: pairs written}

    def translated_pairs() -> Iterator[records.TextPair]:
        """Yields the pairs, and notes each dictionary and counts the pairs meanwhile."""
        for language in tqdm(languages, desc="Languages", unit="language", disable=None):
            sampled_pairs = pairs[language].items()
            dictionary = learn_dictionary(sampled_pairs)
            available = pairs[language].distinct_count()
            dictionaries[language] = {"words": len(dictionary), "pairs": len(sampled_pairs), "found": available}
            for text, group in sampled_texts:
                seed = f"{settings['seed']} {language} {text}"
                for translation in translate_words(text, dictionary, settings["copies"], seed):
                    counts[language] += 1
                    yield records.TextPair(text, pivot, translation, language, group)

    shards = len(records.list_files(data_dir, records.TEXT_PAIRS, "train"))  # as many pipelines can share them
    total = records.write_records(folder, records.TEXT_PAIRS, "train", translated_pairs(), shards)
    if not total:
        raise UserError(
            f"The pairs of {data_dir} in {_listed(languages)} give no dictionary: no two words meet often "
            "enough. Take languages with more pairs."
        )
    return {
        "counts": {"image_text": {}, "text_pairs": {"train": total}},
        "languages": {name: {"text_pairs": {"train": counts[name]}} for name in languages},
        "dictionaries": dictionaries,
        "texts": {"translated": len(sampled_texts), "found": texts.distinct_count()},
    }


def _sample_texts_and_pairs(data_dir: pathlib.Path, settings: dict) -> tuple[Sample, dict[str, Sample]]:
    """Returns (sample of texts, {language: sample of pairs}) of a data folder.

    An item of the texts is (text in the pivot language, its caption group), an item of the pairs (text in the pivot
    language, its translation). `settings`: see `_write_pairs`. Raises `UserError` if there are no pairs of the pivot.
    """
    from mural_tf.data import records

    pivot = settings["pivot"]
    texts = Sample(settings["max_texts"])
    pairs: dict[str, Sample] = {}
    train_pairs = records.read_records(data_dir, records.TEXT_PAIRS, "train")
    for text, group, language, translation in oriented_pairs(train_pairs, pivot):
        texts.add((text, group))
        if language not in pairs:
            pairs[language] = Sample(settings["max_pairs"])
        pairs[language].add((text, translation))
    if not pairs:
        raise UserError(f"No text pair of {data_dir} has a side in {pivot!r}: name another language as `pivot`.")
    return texts, pairs


def describe_word_by_word(folder: pathlib.Path) -> str:
    """Returns a text that says what `build_word_by_word` wrote to a folder: a line for each language, and the total.

    Raises `UserError` if the folder's `dataset.json` lacks an entry.
    """
    path = folder / DESCRIPTION
    description = read_json(path)
    lines = []
    for language, dictionary in json_field(description, "dictionaries", dict[str, dict], path).items():
        words = json_field(dictionary, "words", int, path)
        pairs = json_field(dictionary, "pairs", int, path)
        found_pairs = json_field(dictionary, "found", int, path)
        written = json_field(description, f"languages.{language}.text_pairs.train", int, path)
        share = f"{pairs:,}"
        if found_pairs != pairs:
            share += f" of about {found_pairs:,}"
        lines.append(f"{language}: {words:,} words learnt from {share} pairs, {written:,} texts written")
    texts = json_field(description, "texts.translated", int, path)
    found_texts = json_field(description, "texts.found", int, path)
    if found_texts > texts:
        lines.append(f"{texts:,} of about {found_texts:,} texts were translated: `max_texts`")
    total = json_field(description, "counts.text_pairs.train", int, path)
    return "\n".join([*lines, f"{total:,} text pairs in {folder}"])


def oriented_pairs(pairs: Iterable, pivot: str) -> Iterator[tuple[str, str, str, str]]:
    """Yields (pivot's text, caption group, other language, its text) of pairs with exactly one side in the pivot.

    `pairs`: `TextPair`s; `pivot`: a language.
    """
    for pair in pairs:
        side_a = (pair.text_a, pair.language_a)
        side_b = (pair.text_b, pair.language_b)
        for (text, language), (other_text, other_language) in ((side_a, side_b), (side_b, side_a)):
            if language == pivot and other_language != pivot:
                yield text, pair.group_id, other_language, other_text


def _listed(languages: Iterable[str]) -> str:
    """Returns up to 20 languages in alphabetical order, and how many more there are, as a text."""
    names = sorted(languages)
    text = ", ".join(names[:20])
    if len(names) > 20:
        text += f" and {len(names) - 20} more"
    return text


if __name__ == "__main__":
    data_folder, output_folder, *language_lists = sys.argv[1:]
    target_languages = [language for text in language_lists for language in text.split(",")]
    print(describe_word_by_word(build_word_by_word(data_folder, output_folder, target_languages)))
