"""From text to words, in the graph: the step before word pieces, shared by vocabulary building and tokenizing.

A vocabulary is only right for texts that were split the same way, so both call `split_words`. It is BERT's rule
(Devlin et al., 2019): words end at white space, every punctuation mark and every Chinese character is a word of its
own. Scripts written without spaces (Thai, Lao, Burmese, Khmer) give one long word, which the word pieces divide.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.backend import tf_text

# Soft hyphen and the zero-width (non-)joiners shape letters inside a word: deleting them keeps the word whole
# (Sinhala writes most consonant clusters with a joiner). The zero-width space is not among them: it ends a word.
_JOINERS = r"[\x{00AD}\x{200C}\x{200D}]"
_SPACES = r"[\s\p{Z}\p{Cc}\p{Cf}]+"
_SYMBOLS_AND_PUNCTUATION = r"[!-/:-@\[-`{-~\p{P}]"
_CHINESE = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}"
    r"\x{2B740}-\x{2B81F}\x{2B820}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}]"
)
_KEPT = f"{_SYMBOLS_AND_PUNCTUATION}|{_CHINESE}"


def clean_text(texts: tf.Tensor, lower_case: bool = False, strip_accents: bool = False) -> tf.Tensor:
    """Returns valid UTF-8 with single spaces, in the case asked for.

    Args:
      texts: string [B], any bytes; what is not UTF-8 becomes U+FFFD, one for every offending byte sequence.
      lower_case: Unicode lower case; accents and vowel signs stay.
      strip_accents: decompose and drop every non-spacing mark: é becomes e, but Indic and Arabic vowel signs go too.
        Both options together are what BERT's "uncased" models expect.

    Returns:
      string [B]. Control characters, format characters and all Unicode spaces count as space. (tensorflow_text's
      own BERT tokenizer keeps no-break and ideographic spaces inside words and splits at joiners.)
    """
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    if lower_case:
        texts = tf.strings.lower(texts, encoding="utf-8")
    if strip_accents:
        texts = tf.strings.regex_replace(tf_text.normalize_utf8(texts, "NFD"), r"\p{Mn}", "")
    texts = tf.strings.regex_replace(texts, _JOINERS, "")
    return tf.strings.strip(tf.strings.regex_replace(texts, _SPACES, " "))


def split_words(texts: tf.Tensor) -> tf.RaggedTensor:
    """Splits cleaned texts (string [B], from `clean_text`) into words: string [B, (words)]."""
    # tensorflow_text's regex_split answers the same, but builds a graph of ten times the size around its operation.
    return tf.strings.split(tf.strings.regex_replace(texts, f"({_KEPT})", r" \1 "))
