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
    return [word for part in text.casefold().split() if (word := _stripped(part))]


def _stripped(word: str) -> str:
    letters = [index for index, letter in enumerate(word) if unicodedata.category(letter)[0] not in "PS"]
    return word[letters[0] : letters[-1] + 1] if letters else ""


def learn_dictionary(pairs: Sequence[tuple[str, str]]) -> dict[str, Entry]:
    """Returns which words of the second sides the words of the first become: {word: (words, weights)}, likeliest first.

    A weight is p(f | e) · p(e | f) by IBM Model 1 in both directions: high where each is the other's translation in
    most pairs, and low for words that accompany every word. Words without an entry of `LEAST` are not in it.

    Raises `UserError` where NLTK is not installed.
    """
    try:
        from nltk.translate import AlignedSent, IBMModel1
    except ImportError:
        raise UserError("The dictionary needs NLTK, which is not installed: pip install nltk.") from None
    sides = [(words_of(a), words_of(b)) for a, b in pairs]
    sides = [(a, b) for a, b in sides if a and b]
    if not sides:
        return {}
    forward = IBMModel1([AlignedSent(b, a) for a, b in sides], ITERATIONS).translation_table  # [f][e]: p(f | e)
    backward = IBMModel1([AlignedSent(a, b) for a, b in sides], ITERATIONS).translation_table
    entries = collections.defaultdict(list)
    for word, row in forward.items():
        for pivot_word, probability in row.items():
            if pivot_word is not None:  # None means "from no word"
                weight = round(probability * backward[pivot_word][word], 6)  # the same on every run
                if weight >= LEAST:
                    entries[pivot_word].append((-weight, word))
    ranked_words = {word: sorted(candidates) for word, candidates in entries.items()}
    return {word: ([w for _, w in ranked], [-weight for weight, _ in ranked]) for word, ranked in ranked_words.items()}


def translate_words(text: str, dictionary: dict[str, Entry], copies: int, seed: str) -> list[str]:
    """Returns up to `copies` different translations of a text, none where the dictionary lacks half of its words.

    Words that it lacks are left out. Each word becomes one of its entry, by weight, in the text's order or, for one
    copy of two, in the reverse: languages differ in the order of words.
    """
    words = words_of(text)
    entries = [dictionary[word] for word in words if word in dictionary]
    if not entries or len(entries) < KNOWN * len(words):
        return []
    draw, translations = random.Random(seed), {}
    for _ in range(copies):
        chosen = [draw.choices(*entry)[0] for entry in entries]
        translations[" ".join(chosen if draw.random() < 0.5 else reversed(chosen))] = None
    return list(translations)


class Sample:
    """Keeps at most `size` of the different items that it is given: the items of least hash, in any order."""

    def __init__(self, size: int):
        self._size = size
        self._kept: dict[tuple[str, ...], int] = {}
        self._largest: list[tuple[int, tuple[str, ...]]] = []  # a heap of (-hash, item)
        self._is_whole = True

    def add(self, item: tuple[str, ...]) -> None:
        if item in self._kept:
            return
        hashed = int.from_bytes(hashlib.blake2b("\0".join(item).encode(), digest_size=8).digest(), "big")
        self._kept[item] = hashed
        heapq.heappush(self._largest, (-hashed, item))
        if len(self._kept) > self._size:
            del self._kept[heapq.heappop(self._largest)[1]]
            self._is_whole = False

    def items(self) -> list[tuple[str, ...]]:
        """Returns what was kept, sorted."""
        return sorted(self._kept)

    def given(self) -> int:
        """Returns how many different items there were: exactly if all were kept, else by the hashes of those kept."""
        if self._is_whole:
            return len(self._kept)
        return round(len(self._kept) * 2**64 / -self._largest[0][0])


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
    """Writes text pairs, the pivot's texts and their translations word by word, to `output`; returns that folder.

    Args:
      data_dir: a data folder with text pairs, one side of which is in the pivot language.
      output: as in `build_folder`.
      languages: BCP 47, into which texts are translated; empty: all that have pairs with the pivot.
      pivot: the language whose texts are translated: the texts of all its pairs with any language.
      copies: translations of each text, in each language; equal translations are written once.
      max_pairs: that a language's dictionary is learnt from; more are sampled by hash. It is held in memory.
      max_texts: that are translated; more are sampled by hash.
      seed: of the words that are chosen.

    Raises:
      UserError: no such pairs, a language without any, NLTK is not installed, or `output` holds something else.
    """
    data_dir, pivot = as_path(data_dir), canonical_language(pivot)
    languages = list(dict.fromkeys(map(canonical_language, languages)))
    settings = dict(languages=languages, pivot=pivot, copies=copies, max_pairs=max_pairs, max_texts=max_texts,
                    seed=seed)  # fmt: skip
    identity = {"name": "word by word", "data_dir": str(data_dir), "settings": settings}
    return build_folder(output, identity, lambda folder: _write(folder, data_dir, settings))


def _write(folder: pathlib.Path, data_dir: pathlib.Path, settings: dict) -> dict:
    from mural_lite.progress import tqdm
    from mural_tf.data import records

    pivot, size = settings["pivot"], settings["max_pairs"]
    texts, pairs = Sample(settings["max_texts"]), collections.defaultdict(lambda: Sample(size))
    for text, group, language, other in _oriented(records.read_records(data_dir, records.TEXT_PAIRS, "train"), pivot):
        texts.add((text, group))
        pairs[language].add((text, other))
    if not pairs:
        raise UserError(f"No text pair of {data_dir} has a side in {pivot!r}: name another language as `pivot`.")
    languages = settings["languages"] or sorted(pairs)
    missing = [language for language in languages if language not in pairs]
    if missing:
        raise UserError(f"No text pairs of {pivot} and {', '.join(missing)} in {data_dir}; there are {_listed(pairs)}.")
    taken, dictionaries = texts.items(), {}
    counts: collections.Counter[str] = collections.Counter()

    def translated() -> Iterator[records.TextPair]:
        for language in tqdm(languages, desc="Languages", unit="language", disable=None):
            sides = pairs[language].items()
            dictionary = learn_dictionary(sides)
            dictionaries[language] = {"words": len(dictionary), "pairs": len(sides), "found": pairs[language].given()}
            for text, group in taken:
                seed = f"{settings['seed']} {language} {text}"
                for translation in translate_words(text, dictionary, settings["copies"], seed):
                    counts[language] += 1
                    yield records.TextPair(text, pivot, translation, language, group)

    shards = len(records.list_files(data_dir, records.TEXT_PAIRS, "train"))  # as many pipelines can share them
    total = records.write_records(folder, records.TEXT_PAIRS, "train", translated(), shards)
    if not total:
        raise UserError(
            f"The pairs of {data_dir} in {_listed(languages)} give no dictionary: no two words meet often "
            "enough. Take languages with more pairs."
        )
    return {
        "counts": {"image_text": {}, "text_pairs": {"train": total}},
        "languages": {name: {"text_pairs": {"train": counts[name]}} for name in languages},
        "dictionaries": dictionaries,
        "texts": {"translated": len(taken), "found": texts.given()},
    }


def describe_word_by_word(folder: pathlib.Path) -> str:
    """Returns what `build_word_by_word` has written, with a line for each language."""
    path = folder / DESCRIPTION
    description = read_json(path)
    lines = []
    for language, dictionary in json_field(description, "dictionaries", dict[str, dict], path).items():
        words, pairs, available = (json_field(dictionary, name, int, path) for name in ("words", "pairs", "found"))
        made = json_field(description, f"languages.{language}.text_pairs.train", int, path)
        of = f"{pairs:,}" if available == pairs else f"{pairs:,} of about {available:,}"
        lines.append(f"{language}: {words:,} words learnt from {of} pairs, {made:,} texts written")
    taken, available = (json_field(description, f"texts.{name}", int, path) for name in ("translated", "found"))
    if available > taken:
        lines.append(f"{taken:,} of about {available:,} texts were translated: `max_texts`")
    total = json_field(description, "counts.text_pairs.train", int, path)
    return "\n".join([*lines, f"{total:,} text pairs in {folder}"])


def _oriented(pairs: Iterable, pivot: str) -> Iterator[tuple[str, str, str, str]]:
    """Yields (pivot's text, group, other language, its text) of pairs with one side in the pivot language."""
    for pair in pairs:
        sides = (pair.text_a, pair.language_a), (pair.text_b, pair.language_b)
        for (text, language), (other, other_language) in (sides, sides[::-1]):
            if language == pivot != other_language:
                yield text, pair.group_id, other_language, other


def _listed(languages: Iterable[str]) -> str:
    names = sorted(languages)
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


if __name__ == "__main__":
    wanted = [code for codes in sys.argv[3:] for code in codes.split(",")]
    print(describe_word_by_word(build_word_by_word(*sys.argv[1:3], wanted)))
