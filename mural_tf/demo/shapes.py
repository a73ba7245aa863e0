"""The shapes data set: pictures and captions that the project makes itself, for tests and a first look offline.

A scene is one to three equal shapes of a colour and size on a plain ground. Hand-written words and grammar describe it
in six languages, in two wordings each, and every caption names all attributes, so that different scenes never share
one. As in MURAL (Jain et al., 2021), languages are unequal: English, German, Turkish, Japanese and Persian (written
from right to left) are well resourced; in the under-resourced one, Tajik (in Cyrillic, as no other language here), only
3% of the training images have captions, while translation pairs exist for all of them.

    image_text/train   pictures of the training scenes, each scene drawn again for every picture
    image_text/dev     100 scenes that occur in no other split, one picture each, captions in all six languages
    image_text/test    150 scenes, likewise
    text_pairs/train   English with every other language, for the training scenes

So every caption of the test split describes one image only, and none of them was seen in training. The same
settings give the same bytes (with the same version of Pillow).
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import pathlib
import random
from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict
from PIL import Image, ImageDraw

from mural_lite.errors import UserError
from mural_lite.progress import tqdm
from mural_tf.data.dataset_builder import build_folder, count_records
from mural_tf.data.records import IMAGE_TEXT, TEXT_PAIRS, ImageTextRecord, TextPair, write_records

SHAPES = ("circle", "square", "triangle", "star", "heart", "cross", "ring", "diamond")
COLORS = ("red", "green", "blue", "yellow", "orange", "purple", "brown", "pink")
SIZES = ("small", "big")
GROUNDS = ("white", "black", "grey")
COUNTS = (1, 2, 3)

WELL_RESOURCED = ("en", "de", "tr", "ja", "fa")
UNDER_RESOURCED = ("tg",)
LANGUAGES = WELL_RESOURCED + UNDER_RESOURCED
WORDINGS = 2  # captions per scene and language

FORMAT_VERSION = 1  # raised whenever the same settings would give other bytes
CAPTION_SHARE = 0.03  # share of the training images with captions in under-resourced languages
DEV_IMAGES = 100
TEST_IMAGES = 150
SUPERSAMPLING = 4  # pictures are drawn this many times larger and reduced, for smooth edges

RGB = {  # 0..255
    "red": (214, 32, 32),
    "green": (30, 150, 50),
    "blue": (40, 70, 215),
    "yellow": (245, 220, 40),
    "orange": (245, 135, 20),
    "purple": (130, 45, 165),
    "brown": (125, 75, 35),
    "pink": (250, 150, 190),
    "white": (250, 250, 250),
    "black": (15, 15, 15),
    "grey": (150, 150, 150),
}
COLOR_JITTER = 12  # largest change of a channel
RADIUS = {"small": 0.11, "big": 0.19}  # share of the picture's side
RING_HOLE = 0.55  # the radius of a ring's hole, as a share of the ring's
TILT = 12.0  # degrees, largest; a square must not become a diamond


@dataclasses.dataclass(frozen=True)
class Scene:
    """`count` equal shapes of one size and colour on a plain ground."""

    shape: str
    color: str
    size: str
    ground: str
    count: int

    @property
    def name(self) -> str:
        """A name that no other scene has, for example "2-big-red-star-on-white"."""
        return f"{self.count}-{self.size}-{self.color}-{self.shape}-on-{self.ground}"


def all_scenes() -> list[Scene]:
    """Returns the 1,152 scenes of all `SHAPES`, `COLORS`, `SIZES`, `GROUNDS` and `COUNTS`, in a fixed order."""
    return [Scene(*attributes) for attributes in itertools.product(SHAPES, COLORS, SIZES, GROUNDS, COUNTS)]


def build(data: ConfigDict) -> None:
    """Builds the shapes in the folder that a configuration's branch `data` names; raises as `build_shapes`."""
    build_shapes(data.directory)


def build_shapes(
    output: str | pathlib.Path, seed: int = 0, images: int = 2000, image_size: int = 48, progress: bool = False
) -> pathlib.Path:
    """Builds the data set into the folder `output`, unless it is there already, and returns that folder.

    Args:
      output: a folder, here or in a store, that does not exist yet, is empty, or holds this data set with the same
        settings.
      seed: chooses the scenes of each split, the drawings and the captioned 3%.
      images: number of training pictures; dev and test have `DEV_IMAGES` and `TEST_IMAGES` more.
      image_size: side of a picture in pixels, at least 16.
      progress: whether to show a bar.

    Raises:
      UserError: `output` is "", holds anything else or cannot be written, or `images` or `image_size` is too small.
    """
    if not output:
        raise UserError("No data folder given for the shapes: set --config.data.directory.")
    if images < 1 or image_size < 16:
        raise UserError(f"images={images} must be at least 1 and image_size={image_size} at least 16 pixels.")
    settings = {"seed": int(seed), "images": int(images), "image_size": int(image_size)}
    packages = {}  # nothing is fetched
    identity = {"name": "shapes", "format_version": FORMAT_VERSION, "settings": settings, "packages": packages}
    return build_folder(output, identity, lambda folder: _write(folder, **settings, progress=progress))


def _write(folder: pathlib.Path, seed: int, images: int, image_size: int, progress: bool) -> dict:
    """Writes all records into `folder` and returns their description for `dataset.json`; see `build_shapes`."""
    scenes = all_scenes()
    random.Random(f"scenes {seed}").shuffle(scenes)
    test_scenes = scenes[:TEST_IMAGES]
    dev_scenes = scenes[TEST_IMAGES : TEST_IMAGES + DEV_IMAGES]
    train_scenes = scenes[TEST_IMAGES + DEV_IMAGES :]
    captioned_count = max(1, round(CAPTION_SHARE * images))  # of training pictures with captions in all languages
    captioned = set(random.Random(f"captions {seed}").sample(range(images), captioned_count))
    plan = []  # (split, scene, languages of the captions) of each picture
    for number in range(images):
        languages = LANGUAGES if number in captioned else WELL_RESOURCED
        plan.append(("train", train_scenes[number % len(train_scenes)], languages))
    plan += [("dev", scene, LANGUAGES) for scene in dev_scenes]
    plan += [("test", scene, LANGUAGES) for scene in test_scenes]
    records = {"train": [], "dev": [], "test": []}
    for split, scene, languages in tqdm(plan, desc="Drawing shapes", unit="image", disable=not progress):
        name = f"{split}-{len(records[split]):05d}"
        records[split].append(_image_record(name, scene, languages, image_size, random.Random(f"{name} {seed}")))
    pairs = _text_pairs(train_scenes[:images])
    random.Random(f"pairs {seed}").shuffle(pairs)
    for split, split_records in records.items():
        write_records(folder, IMAGE_TEXT, split, split_records)
    write_records(folder, TEXT_PAIRS, "train", pairs)
    return _describe(records, pairs)


def _image_record(
    name: str, scene: Scene, languages: Sequence[str], image_size: int, draw: random.Random
) -> ImageTextRecord:
    """Returns a record with a new drawing of a scene, of `image_size` pixels, and its captions in `languages`.

    `name`, for example "train-00012", begins the image's id; `draw` is as in `draw_scene`.
    """
    texts = list(itertools.chain.from_iterable(captions(scene, language) for language in languages))
    return ImageTextRecord(
        image_id=f"{name}-{scene.name}",
        image=draw_scene(scene, image_size, draw),
        captions=texts,
        languages=np.repeat(languages, WORDINGS).tolist(),
        caption_groups=[scene.name] * len(texts),
    )


def _text_pairs(scenes: Sequence[Scene]) -> list[TextPair]:
    """Returns pairs of each scene's captions in English and in every other language, wording by wording."""
    pairs = []
    for scene, language in itertools.product(scenes, LANGUAGES[1:]):  # all but English
        for english, other in zip(captions(scene, "en"), captions(scene, language)):
            pairs.append(TextPair(english, "en", other, language, scene.name))
    return pairs


def draw_scene(scene: Scene, image_size: int, draw: random.Random) -> bytes:
    """Draws a scene and returns a square PNG, RGB, with a side of `image_size` pixels.

    `draw` chooses places, sizes, tilts and shades of the colours; the same state gives the same bytes.
    """
    side = image_size * SUPERSAMPLING
    ground = _shade(scene.ground, draw)
    color = _shade(scene.color, draw)
    picture = Image.new("RGB", (side, side), ground)
    canvas = ImageDraw.Draw(picture)
    for quarter in draw.sample(range(4), scene.count):  # of the picture: a shape in each, so that none covers another
        radius = RADIUS[scene.size] * draw.uniform(0.9, 1.1) * side  # the sizes stay apart
        slack = max(0.0, 0.25 * side - radius - SUPERSAMPLING)  # to any side; a pixel stays free
        row, column = divmod(quarter, 2)
        x = (0.25 + 0.5 * column) * side + draw.uniform(-slack, slack)
        y = (0.25 + 0.5 * row) * side + draw.uniform(-slack, slack)
        tilt = math.radians(draw.uniform(-TILT, TILT))
        _draw_shape(canvas, scene.shape, x=x, y=y, radius=radius, tilt=tilt, color=color, ground=ground)
    data = io.BytesIO()
    picture.resize((image_size, image_size), Image.Resampling.BOX).save(data, "PNG")
    return data.getvalue()


def _shade(color: str, draw: random.Random) -> tuple[int, ...]:
    """Returns (red, green, blue), in 0..255, near the colour of a name in `RGB`; `draw` chooses the difference."""
    shifted = [channel + draw.randint(-COLOR_JITTER, COLOR_JITTER) for channel in RGB[color]]
    return tuple(min(255, max(0, channel)) for channel in shifted)


def _draw_shape(canvas, shape: str, x: float, y: float, radius: float, tilt: float, color, ground) -> None:
    """Draws a shape of `SHAPES` into a Pillow canvas.

    Args:
      canvas: a `PIL.ImageDraw`.
      shape: the shape's name.
      x, y, radius: its centre and radius in pixels.
      tilt: by how many radians it is turned.
      color: the shape's, RGB.
      ground: the colour of the picture's ground, in a ring's hole.
    """
    if shape in ("circle", "ring"):
        canvas.ellipse([x - radius, y - radius, x + radius, y + radius], fill=color)
        if shape == "ring":
            hole_radius = RING_HOLE * radius
            canvas.ellipse([x - hole_radius, y - hole_radius, x + hole_radius, y + hole_radius], fill=ground)
        return
    cosine = math.cos(tilt)
    sine = math.sin(tilt)
    corners = []
    for u, v in _outline(shape):  # in units of the radius
        corner_x = x + radius * (cosine * u - sine * v)
        corner_y = y + radius * (sine * u + cosine * v)
        corners.append((corner_x, corner_y))
    canvas.polygon(corners, fill=color)


def _outline(shape: str) -> list[tuple[float, float]]:
    """Returns a shape's corners (x, y) in the unit circle, y pointing down; raises `ValueError` for other shapes."""
    if shape == "square":
        return [(-0.7, -0.7), (0.7, -0.7), (0.7, 0.7), (-0.7, 0.7)]
    if shape == "diamond":
        return [(0.0, -1.0), (0.7, 0.0), (0.0, 1.0), (-0.7, 0.0)]
    if shape == "triangle":
        return [(0.0, -1.0), (0.86, 0.5), (-0.86, 0.5)]
    if shape == "cross":
        a = 0.3  # half of an arm's width
        b = 0.95  # an arm's length from the centre
        return [
            (-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a), (a, b), (-a, b), (-a, a), (-b, a), (-b, -a), (-a, -a)
        ]  # fmt: skip
    if shape == "star":
        corners = []
        for i in range(10):  # outer and inner corners in turn, from the top one on
            radius = 0.42 if i % 2 else 1.0
            angle = math.pi * (i / 5 - 0.5)
            corners.append((radius * math.cos(angle), radius * math.sin(angle)))
        return corners
    if shape == "heart":  # the curve x = 16 sin³ t, y = 13 cos t − 5 cos 2t − 2 cos 3t − cos 4t, shrunk to the circle
        corners = []
        for t in [2 * math.pi * i / 40 for i in range(40)]:
            x = 16 / 18 * math.sin(t) ** 3
            y = -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t) + 2) / 18
            corners.append((x, y))
        return corners
    raise ValueError(f"Unknown shape {shape!r}.")


def _describe(records: dict[str, list[ImageTextRecord]], pairs: list[TextPair]) -> dict:
    """Returns the description of {split: image-text records} and the text pairs for `dataset.json`."""
    return {
        "license": "Apache-2.0",  # made by this project
        **count_records(LANGUAGES, records, pairs),
        "language_groups": {"well-resourced": list(WELL_RESOURCED), "under-resourced": list(UNDER_RESOURCED)},
    }


def captions(scene: Scene, language: str) -> tuple[str, ...]:
    """Returns the `WORDINGS` captions of a scene in a language of `LANGUAGES`.

    Caption i of a language is a translation of caption i of any other language.
    """
    if language == "en":
        return _english(scene)
    if language == "de":
        return _german(scene)
    return _plain(scene, language)


def _table(words: str) -> dict[str, str]:
    """Returns {"red": "rot", "green": "grün"} for "red=rot green=grün"; an underscore means a space."""
    return dict(entry.replace("_", " ").split("=") for entry in words.split())


def _english(scene: Scene) -> tuple[str, ...]:
    """Returns a scene's captions in English, one per wording."""
    shape = scene.shape
    if scene.count > 1:
        shape += "es" if scene.shape == "cross" else "s"
    count = ("a", "two", "three")[scene.count - 1]
    return (
        f"{count} {scene.size} {scene.color} {shape} on a {scene.ground} background",
        f"on {scene.ground}: {count} {shape}, {scene.size} and {scene.color}",
    )


_DE = _table(
    "red=rot green=grün blue=blau yellow=gelb orange=orangefarben purple=violett brown=braun pink=rosafarben "
    "small=klein big=groß white=weiß black=schwarz grey=grau"
)
_DE_SHAPES = {  # singular, plural, ending of adjectives in the singular
    "circle": ("Kreis", "Kreise", "er"),
    "square": ("Quadrat", "Quadrate", "es"),
    "triangle": ("Dreieck", "Dreiecke", "es"),
    "star": ("Stern", "Sterne", "er"),
    "heart": ("Herz", "Herzen", "es"),
    "cross": ("Kreuz", "Kreuze", "es"),
    "ring": ("Ring", "Ringe", "er"),
    "diamond": ("Raute", "Rauten", "e"),
}


def _german(scene: Scene) -> tuple[str, ...]:
    """Returns a scene's captions in German, one per wording."""
    shape, plural, ending = _DE_SHAPES[scene.shape]
    if scene.count > 1:
        shape = plural
        ending = "e"
    article = "eine" if ending == "e" else "ein"
    count = (article, "zwei", "drei")[scene.count - 1]
    size = _DE[scene.size]
    color = _DE[scene.color]
    ground = _DE[scene.ground]
    return (
        f"{count} {size}{ending} {color}{ending} {shape} auf {ground}em Hintergrund",
        f"auf {ground.capitalize()}: {count} {shape}, {size} und {color}",
    )


# Languages whose words do not change: the counts, the words, and the wordings.
_PLAIN = {
    "tr": (
        ("bir", "iki", "üç"),
        _table(
            "circle=daire square=kare triangle=üçgen star=yıldız heart=kalp cross=haç ring=halka "
            "diamond=eşkenar_dörtgen red=kırmızı green=yeşil blue=mavi yellow=sarı orange=turuncu purple=mor "
            "brown=kahverengi pink=pembe "
            "small=küçük big=büyük white=beyaz black=siyah grey=gri"
        ),
        "{ground} zemin üzerinde {count} {size} {color} {shape}",
        "{count} {shape}, {size} ve {color}, zemin {ground}",
    ),
    "ja": (
        ("一つ", "二つ", "三つ"),
        _table(
            "circle=円 square=正方形 triangle=三角形 star=星 heart=ハート cross=十字 ring=輪 diamond=ひし形 "
            "red=赤い green=緑の blue=青い yellow=黄色い orange=オレンジ色の purple=紫の brown=茶色の pink=ピンクの "
            "small=小さい big=大きい white=白 black=黒 grey=灰色"
        ),
        "{ground}の背景に{size}{color}{shape}が{count}",
        "{count}の{size}{color}{shape}、背景は{ground}",
    ),
    "fa": (
        ("یک", "دو", "سه"),
        _table(
            "circle=دایره square=مربع triangle=مثلث star=ستاره heart=قلب cross=صلیب ring=حلقه diamond=لوزی "
            "red=قرمز green=سبز blue=آبی yellow=زرد orange=نارنجی purple=بنفش brown=قهوه‌ای pink=صورتی "
            "small=کوچک big=بزرگ white=سفید black=سیاه grey=خاکستری"
        ),
        "{count} {shape} {size} {color} روی زمینه {ground}",
        "روی {ground}: {count} {shape}، {size} و {color}",
    ),
    "tg": (
        ("як", "ду", "се"),
        _table(
            "circle=доира square=мураббаъ triangle=секунҷа star=ситора heart=дил cross=салиб ring=ҳалқа diamond=ромб "
            "red=сурх green=сабз blue=кабуд yellow=зард orange=норинҷӣ purple=бунафш brown=қаҳваранг pink=гулобӣ "
            "small=хурд big=калон white=сафед black=сиёҳ grey=хокистарӣ"
        ),
        "{count} {linked} {size}и {color} дар заминаи {ground}",
        "дар {ground}: {count} {shape}, {size} ва {color}",
    ),
}


def _plain(scene: Scene, language: str) -> tuple[str, ...]:
    """Returns a scene's captions in a language of `_PLAIN`, one per wording."""
    counts, words, *wordings = _PLAIN[language]
    attributes = {name: words[getattr(scene, name)] for name in ("shape", "size", "color", "ground")}
    attributes["linked"] = attributes["shape"].rstrip("ъ") + "и"  # Tajik's suffix that ties a noun to its adjective
    return tuple(wording.format(count=counts[scene.count - 1], **attributes) for wording in wordings)
