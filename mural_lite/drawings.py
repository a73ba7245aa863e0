"""SVG drawings as pictures, by resvg. They are taken only from files, not from clients of a server.

Strangers write drawings. A drawing may name other files as parts of itself, and a few hundred bytes may ask for hours
of work or end the program that draws them. So a drawing is parsed, checked, and written anew, because another parser
may see other parts in the same bytes; then a process of its own draws it, with bounds on time and memory.
"""

from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree

import defusedxml.ElementTree

SIDE = 512  # pixels of the longer side
MAX_BYTES = 5_000_000
MAX_DEPTH = 192  # elements inside each other; resvg calls itself for each, and 250 can be too many for its stack
MAX_ENTITY = 100  # characters; Illustrator names addresses of 50 by entities
CPU_SECONDS = 2
DEADLINE = 10  # seconds with the start of the process, on a machine that is busy with other work
MEMORY = 2**30  # bytes
# Only raster formats: a drawing within a drawing could hold everything that is refused here.
_OWN_PICTURE = re.compile(r"#|data:image/(png|jpe?g|gif|webp)[;,]")
_FOREIGN_STYLE = re.compile(r"url\((?!\s*[\"']?\s*(#|data:image/(png|jpe?g|gif|webp)[;,]))|@import|\\[0-9a-z]", re.I)
# Windows has no `resource`; there the deadline is the only bound.
_PROGRAM = f"""
import sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, ({CPU_SECONDS}, {CPU_SECONDS}))
    resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except ImportError:
    pass
import resvg_py
drawing = sys.stdin.buffer.read().decode()
picture = resvg_py.svg_to_bytes(svg_string=drawing, skip_system_fonts=True, width={SIDE}, height={SIDE})
sys.stdout.buffer.write(bytes(picture))
"""


def draw(drawing: bytes) -> bytes:
    """Returns an SVG drawn as PNG, of at most `SIDE` pixels per side; raises `ValueError` if it cannot be drawn."""
    try:
        import resvg_py  # noqa: F401 - the process below needs it
    except ImportError:
        raise ValueError("SVG drawing: `pip install resvg-py` makes it readable") from None
    checked = _checked(drawing)
    try:
        program = [sys.executable, "-c", _PROGRAM]
        process = subprocess.run(program, input=checked, capture_output=True, timeout=DEADLINE, check=False)
    except subprocess.TimeoutExpired:
        raise ValueError(f"SVG drawing that takes more than {DEADLINE} seconds") from None
    if process.returncode < 0:  # ended by a signal, at the bounds or by resvg's own end
        raise ValueError(f"SVG drawing that takes more than {CPU_SECONDS} seconds, or more memory, than a drawing may")
    if process.returncode:
        raise ValueError("SVG drawing that cannot be drawn")
    return process.stdout


def _checked(drawing: bytes) -> bytes:
    """Returns a drawing written anew without document type and entities; raises `ValueError` if it is not harmless."""
    if len(drawing) > MAX_BYTES:
        raise ValueError(f"SVG drawing of more than {MAX_BYTES:,} bytes")
    parser = defusedxml.ElementTree.XMLParser(target=_Drawing(), forbid_entities=False)
    parser.parser.EntityDeclHandler = _check_entity
    try:
        parser.feed(drawing)
        return ElementTree.tostring(parser.close())
    except (ElementTree.ParseError, defusedxml.DefusedXmlException, LookupError):  # LookupError: an unknown encoding
        raise ValueError("SVG drawing that cannot be drawn") from None


def _check_entity(name, is_parameter, value, base, system, public, notation) -> None:
    """Raises `ValueError` for an entity that is not a short plain text, so that a drawing grows to 130 MB at most."""
    if is_parameter or value is None or len(value) > MAX_ENTITY or re.search("[&<%]", value):
        raise ValueError("SVG drawing that shows other files: save it as PNG")


class _Drawing(ElementTree.TreeBuilder):
    """Builds the tree of a drawing; raises `ValueError` for elements in too great a depth, and names of other files."""

    def __init__(self):
        super().__init__()
        self._depth = 0

    def start(self, tag, attributes):
        """Begins an element; raises `ValueError` if an attribute names another file."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"SVG drawing with more than {MAX_DEPTH} elements inside each other")
        harmless_attributes = {}
        for name, value in attributes.items():
            local_name = _local(name).lower()
            if local_name in ("href", "src"):
                if _local(tag) == "a":  # a link, which nothing follows
                    continue
                value = value.strip()
                if value and not _OWN_PICTURE.match(value):
                    raise ValueError("SVG drawing that shows other files: save it as PNG")
            if "url(" in value or local_name == "style":
                _check_style(value)
            harmless_attributes[name] = value
        return super().start(tag, harmless_attributes)

    def end(self, tag):
        """Ends an element; a style is checked then, because its text is known."""
        self._depth -= 1
        element = super().end(tag)
        if _local(tag).lower() == "style":
            _check_style("".join(element.itertext()))
        return element


def _local(name: str) -> str:
    """Returns the name of an element or attribute without its namespace, "{http://www.w3.org/2000/svg}"."""
    _, _, local_name = name.rpartition("}")
    return local_name


def _check_style(value: str) -> None:
    """Raises `ValueError` for a style that names other files."""
    if _FOREIGN_STYLE.search(value):
        raise ValueError("SVG drawing that shows other files: save it as PNG")
