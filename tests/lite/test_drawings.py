"""SVG files: drawn where they are files, with bounds on what they name, hold and take."""

import base64
import importlib.util

import pytest
from odd_pictures import saved
from PIL import Image

from mural_lite.pictures import BadImage, read_file, read_picture

needs_resvg = pytest.mark.skipif(
    importlib.util.find_spec("resvg_py") is None, reason="needs resvg-py: pip install -e '.[demo]'"
)
NAMES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
SHAPE = "<rect width='9' height='9' fill='red'/>"


def drawing(content, start=""):
    return f'{start}<svg {NAMES} width="10" height="20">{content}</svg>'


def drawn(folder, text):
    path = folder / "a.svg"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_picture(read_file(path))


@needs_resvg
def test_a_drawing_is_drawn_where_it_is_a_file(tmp_path):
    image = drawn(tmp_path, drawing(SHAPE))
    assert image.size == (256, 512) and image.getpixel((9, 9)) == (255, 0, 0)
    assert image.getpixel((9, 500)) == (255, 255, 255)
    large = f'<svg {NAMES} width="10" height="1e9"></svg>'  # its shape would take 64 GB at full width
    assert max(drawn(tmp_path, large).size) <= 512
    with pytest.raises(BadImage, match="cannot be drawn"):
        drawn(tmp_path, "<svg")


PICTURE = base64.b64encode(saved(Image.new("RGB", (9, 9), "red"), "PNG")).decode()
DRAWN = {
    "an address within": '<defs><rect id="a" width="9" height="9" fill="red"/></defs><use xlink:href="#a"/>',
    "a picture within": f'<image width="9" height="9" href="data:image/png;base64,{PICTURE}"/>',
    "a link": f'<a xlink:href="https://example.org">{SHAPE}</a>',
    "a colour within": '<linearGradient id="a"><stop stop-color="red"/></linearGradient>'
    '<rect width="9" height="9" style="fill:url(#a)"/>',
    "names of files": rf'<g xmlns:x="http://x.org/" x:docname="C:\a.svg" data-font="\'A\'">{SHAPE}</g>',
    "a text about files": f"{SHAPE}<text>@import 'a.css'; url(a.png)</text>",
    "a style": f'<style><![CDATA[rect {{stroke: url("#b")}}]]></style>{SHAPE}',
}
STARTS = {
    "a byte order mark": "\ufeff",
    "a public document type": '<?xml version="1.0"?><!-- a --><!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" '
    '"http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd"><!-- b -->',
    "Illustrator's entities": '<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.0//EN" "svg10.dtd" [\n'
    '\t<!ENTITY ns_flows "http://ns.adobe.com/Flows/1.0/">\n]>\n',
}


@needs_resvg
@pytest.mark.parametrize("case", [*DRAWN, *STARTS])
def test_a_harmless_drawing_is_drawn(tmp_path, case):
    image = drawn(tmp_path, drawing(DRAWN.get(case, SHAPE), STARTS.get(case, "")))
    assert image.getpixel((9, 9)) == (255, 0, 0)


FOREIGN = {  # `FILE` is the path of a picture, absolute and from the working directory
    "href": "<image href='FILE'/>",
    "another quote": "<image\nxlink:href = 'FILE'/>",
    "an angle in an attribute": '<image data-x=">" xlink:href="FILE"/>',
    "a prefix with a dash": '<s-v:image xmlns:s-v="http://www.w3.org/2000/svg" href="FILE"/>',
    "a prefix with an accent": '<é:image xmlns:é="http://www.w3.org/2000/svg" xlink:href="FILE"/>',
    "another prefix of the link": '<image xmlns:y="http://www.w3.org/1999/xlink" y:href="FILE"/>',
    "a filter": '<filter id="f"><feImage result=">" href="FILE"/></filter><path d="M0 0h9v9" filter="url(#f)"/>',
    "characters by number": '<image href="&#47;&#x2F;FILE"/>',
    "a part of another drawing": '<use href="FILE#a"/>',
    "src": '<image src="FILE"/>',
    "a style": '<rect width="9" height="9" style="fill: URL( FILE )"/>',
    "an attribute": "<rect width='9' height='9' fill='url(\"FILE\")'/>",
    "an escaped style": r'<rect width="9" height="9" style="fill: u\72l(FILE)"/>',
    "a style element": "<style>rect {fill: url(<![CDATA[FILE)}]]></style>",
    "an import": "<style>@import 'FILE';</style>",
    "an address of another kind": '<image href="data:text/plain;base64,PHN2Zy8+"/>',
    "a drawing in an address": '<image href="data:image/svg+xml;base64,PHN2Zy8+"/>',
    "a blank before it": "<image href=' \n FILE'/>",
}
TYPES = {
    "an entity": "<!DOCTYPE svg [<!ENTITY part '&#60;image href=\"FILE\"/>'>]>",
    "entities of entities": "<!DOCTYPE svg [<!ENTITY a 'aaaa'><!ENTITY part '&a;&a;'>]>",
    "a long entity": f"<!DOCTYPE svg [<!ENTITY part '{'a' * 101}'>]>",
    "a parameter": "<!DOCTYPE svg [<!ENTITY % part 'a'>]>",
    "a foreign entity": "<!DOCTYPE svg [<!ENTITY part SYSTEM 'FILE'>]>",
    "an attribute by default": "<!DOCTYPE svg [<!ATTLIST image href CDATA 'FILE'>]>",
}


@needs_resvg
@pytest.mark.parametrize("case", [*FOREIGN, *TYPES])
def test_a_drawing_shows_no_file_of_this_machine(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (9, 9)).save(tmp_path / "secret.png")
    use = "<image/>" if "default" in case else "&part;"
    text = drawing(FOREIGN.get(case, use), TYPES.get(case, ""))
    for path in (f"{tmp_path}/secret.png", "secret.png"):
        with pytest.raises(BadImage, match="shows other files"):
            drawn(tmp_path, text.replace("FILE", path))


BLUR = "<feGaussianBlur stdDeviation='90'/>"
SLOW = {
    "radius": '<filter id="f"><feMorphology operator="dilate" radius="3000"/></filter>',
    "blurs": f"<filter id='f'>{BLUR * 3_000}</filter>",
    "octaves": '<filter id="f"><feTurbulence baseFrequency="1" numOctaves="100000000"/></filter>',
}


@needs_resvg
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case == "octaves" else pytest.mark.slow) for case in SLOW]
)
def test_a_slow_drawing_is_given_up(tmp_path, case):
    with pytest.raises(BadImage, match="more than (2|10) seconds"):  # of processor, or of a busy machine
        drawn(tmp_path, drawing(f'{SLOW[case]}<rect width="10" height="20" filter="url(#f)"/>'))


@needs_resvg
def test_a_drawing_ends_no_process(tmp_path):
    for depth in (191, 100_000):  # and the drawing around them
        with pytest.raises(BadImage, match="192 elements inside each other"):
            drawn(tmp_path, drawing("<g>" * depth + SHAPE + "</g>" * depth))
    with pytest.raises(BadImage, match="more than 5,000,000 bytes"):
        drawn(tmp_path, drawing(" " * 5_000_000))
    data = base64.b64encode(saved(Image.new("1", (20_000, 20_000)), "PNG")).decode()  # in colours 1.6 GB
    with pytest.raises(BadImage, match="more memory|10 seconds"):  # of a busy machine
        drawn(tmp_path, drawing(f'<image width="9" height="9" href="data:image/png;base64,{data}"/>'))
    assert drawn(tmp_path, drawing("<g>" * 190 + SHAPE + "</g>" * 190)).getpixel((9, 9)) == (255, 0, 0)
