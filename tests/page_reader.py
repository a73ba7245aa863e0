"""A page as tests read it."""

import html.parser
import re

from snapshots import assert_snapshot

EMPTY = ("meta", "img", "br", "link", "input", "path")


class Page(html.parser.HTMLParser):
    """The tags of a page with their attributes, and what it says; one that is not closed in order fails.

    No page runs a script or loads anything from elsewhere; a page that is served has pictures at its own addresses.
    """

    def __init__(self, source, is_served=False):
        super().__init__()
        self.source, self.tags, self.text, self._open = source, [], "", []
        source.encode("utf-8")
        self.feed(source)
        assert not self._open
        self.text = " ".join(self.text.split())  # as it is seen
        loaded = [of["src"] for of in self.all("img", "script") if "src" in of] + [
            of["href"] for of in self.all("link")
        ]
        assert all(address.startswith(("data:", *["search/"] * is_served)) for address in loaded)
        assert not re.search(r"url\(|@import", source) and "default-src 'none'" in source
        scripts = self.all("script")  # which a policy knows by its hash
        assert scripts in ([], [{}]) and bool(scripts) == ("script-src 'sha256-" in source)
        assert is_served or not scripts
        assert not any(name.startswith("on") for _, attributes in self.tags for name in attributes)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in EMPTY:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self._open):
            self.text += data

    def all(self, *names):
        return [attributes for name, attributes in self.tags if name in names]


def assert_page(name, answer, status=200):
    """Compares with a snapshot a page that was answered, (status, HTML, headers)."""
    assert (answer[0], answer[2].get_content_type()) == (status, "text/html"), answer
    assert_html(name, Page(answer[1].decode(), is_served=True))


def assert_html(name, page, **words):
    """Compares a page with a snapshot, without its style, its script and the bytes of its pictures."""
    source = re.sub(r"(?s)<(style|script)>.*?</", r"<\1>…</", page.source)
    source = re.sub("'sha256-[^']+'", "'sha256-…'", source)
    source = re.sub(r"\b(item|like)=(\d+)-[0-9a-f]{16}\b", r"\1=\2", source)  # a hash of a path of this machine
    assert_snapshot(f"pages/{name}", re.sub('"data:image/[^"]+"', '"data:…"', source), **words)
