"""A small search page, as plain functions that any HTTP server can mount.

    GET <prefix>                         page_html(languages)
    GET <prefix>/answer?sentence=…&k=…   answer(index, embedder, sentence, k) as JSON
    GET <prefix>/thumbnail/<row>         thumbnail(index, row), image/jpeg

The page finds its prefix in its own address. Rows, never paths, come in by URLs, and no path of the machine goes out.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import pathlib
from collections.abc import Sequence

from mural_tf.search import pages
from mural_tf.search.index import Index
from mural_tf.search.items import IMAGES, TEXTS
from mural_tf.search.pages import language_attribute
from mural_tf.search.queries import Query, search

LONGEST_SENTENCE = 2000  # characters; models read far fewer tokens
MOST_RESULTS = 100
TEMPLATE = pathlib.Path(__file__).with_name("web_page.html")


def page_html(languages: Sequence[str] = ()) -> str:
    """Returns the page; `languages` (BCP 47) can be chosen there, for the right fonts of what is typed."""
    page = TEMPLATE.read_text(encoding="utf-8")
    codes = [code for code in languages if language_attribute(code)]
    options = "".join(f'<option value="{html.escape(code)}">{html.escape(code)}</option>' for code in codes)
    script = page[page.index("<script>") + len("<script>") : page.index("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return page.replace("{{script_hash}}", digest).replace("{{language_options}}", options)


def answer(index: Index, embedder, sentence: str, k: int = 20) -> dict[str, object]:
    """Returns the `k` items closest to a sentence in any language, as JSON values.

    Returns:
      {"sentence", "kind", "count", "hits": [{"rank", "score", "row", "name", "caption", "language", "has_image"}]}.

    Raises:
      ValueError: an empty sentence or one of more than 2,000 characters, k outside [1, 100].
    """
    if len(sentence) > LONGEST_SENTENCE:
        raise ValueError(f"The sentence has {len(sentence)} characters; at most {LONGEST_SENTENCE} are read.")
    if not 1 <= k <= MOST_RESULTS:
        raise ValueError(f"k must be between 1 and {MOST_RESULTS}, got {k}.")
    hits = []
    for hit in search(index, embedder, [Query(sentence)], k)[0].hits:
        item = index.describe(hit.row)
        language, caption = (item.language, item.name) if index.kind == TEXTS else item.caption()
        name = os.path.basename(item.name) if index.kind == IMAGES else ""
        shown = {"rank": hit.rank, "score": round(hit.score, 4), "row": hit.row, "name": name}
        hits.append({**shown, "caption": caption, "language": language, "has_image": item.has_image})
    return {"sentence": sentence, "kind": index.kind, "count": len(index), "hits": hits}


def thumbnail(index: Index, row: int) -> bytes:
    """Returns a small JPEG of the image of a row, or of the image that a text describes.

    Raises `IndexError` for a row that is not there, `OSError` or `ValueError` if its image is gone or damaged.
    """
    return pages.thumbnail(index.read_image(row))
