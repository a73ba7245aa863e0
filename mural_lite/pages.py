"""Pages for people: HTML without scripts; all but the server's are one file that needs nothing outside it.

A page's template is in the folder of the code that computes its values; the parts that pages share are in
`templates/`. Every text is escaped.
"""

from __future__ import annotations

import functools
import pathlib

from mural_lite.printable import visible

TEMPLATES = pathlib.Path(__file__).with_name("templates")


def render(template: pathlib.Path, **values) -> str:
    """Returns the HTML of a template with `values`; raises `jinja2.UndefinedError` for a value that is missing."""
    return _environment(template.parent).get_template(template.name).render(**values)


@functools.cache
def _environment(folder: pathlib.Path):
    """Returns Jinja's environment for the templates in a folder, and for the parts that pages share."""
    import jinja2  # only where a page is made

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
