"""Captions of the shapes data set: what a scene is called in six languages, by hand-written words and grammar.

English, German, Turkish, Japanese and Persian (written from right to left) are its well-resourced languages, Tajik
(in Cyrillic, as no other language here) the under-resourced one. Every caption names all attributes of its scene, so
different scenes never share one.
"""

from __future__ import annotations

import dataclasses
import itertools

SHAPES = ("circle", "square", "triangle", "star", "heart", "cross", "ring", "diamond")
COLORS = ("red", "green", "blue", "yellow", "orange", "purple", "brown", "pink")
SIZES = ("small", "big")
GROUNDS = ("white", "black", "grey")
COUNTS = (1, 2, 3)

WELL_RESOURCED = ("en", "de", "tr", "ja", "fa")
UNDER_RESOURCED = ("tg",)
LANGUAGES = WELL_RESOURCED + UNDER_RESOURCED
WORDINGS = 2  # captions per scene and language


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
        return f"{self.count}-{self.size}-{self.color}-{self.shape}-on-{self.ground}"


def all_scenes() -> list[Scene]:
    """Returns the 1,152 scenes in a fixed order."""
    return [Scene(*attributes) for attributes in itertools.product(SHAPES, COLORS, SIZES, GROUNDS, COUNTS)]


def captions(scene: Scene, language: str) -> tuple[str, ...]:
    """Returns the `WORDINGS` captions of a scene; those in the same place mean the same in every language."""
    return _GRAMMARS[language](scene)


def _table(words: str) -> dict[str, str]:
    """Reads "red=rot green=grün"; an underscore stands for a space."""
    return {key: word.replace("_", " ") for key, word in (entry.split("=") for entry in words.split())}


def _english(scene: Scene) -> tuple[str, ...]:
    plural = "" if scene.count == 1 else "es" if scene.shape == "cross" else "s"
    count = ("a", "two", "three")[scene.count - 1]
    return (
        f"{count} {scene.size} {scene.color} {scene.shape}{plural} on a {scene.ground} background",
        f"on {scene.ground}: {count} {scene.shape}{plural}, {scene.size} and {scene.color}",
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
    singular, plural, ending = _DE_SHAPES[scene.shape]
    shape, ending = (singular, ending) if scene.count == 1 else (plural, "e")
    count = ("eine" if ending == "e" else "ein", "zwei", "drei")[scene.count - 1]
    size, color, ground = _DE[scene.size], _DE[scene.color], _DE[scene.ground]
    return (
        f"{count} {size}{ending} {color}{ending} {shape} auf {ground}em Hintergrund",
        f"auf {ground.capitalize()}: {count} {shape}, {size} und {color}",
    )


_TR = _table(
    "circle=daire square=kare triangle=üçgen star=yıldız heart=kalp cross=haç ring=halka diamond=eşkenar_dörtgen "
    "red=kırmızı green=yeşil blue=mavi yellow=sarı orange=turuncu purple=mor brown=kahverengi pink=pembe "
    "small=küçük big=büyük white=beyaz black=siyah grey=gri"
)


def _turkish(scene: Scene) -> tuple[str, ...]:
    count = ("bir", "iki", "üç")[scene.count - 1]
    shape, size, color, ground = _TR[scene.shape], _TR[scene.size], _TR[scene.color], _TR[scene.ground]
    return (
        f"{ground} zemin üzerinde {count} {size} {color} {shape}",
        f"{count} {shape}, {size} ve {color}, zemin {ground}",
    )


_JA = _table(
    "circle=円 square=正方形 triangle=三角形 star=星 heart=ハート cross=十字 ring=輪 diamond=ひし形 "
    "red=赤い green=緑の blue=青い yellow=黄色い orange=オレンジ色の purple=紫の brown=茶色の pink=ピンクの "
    "small=小さい big=大きい white=白 black=黒 grey=灰色"
)


def _japanese(scene: Scene) -> tuple[str, ...]:
    count = ("一つ", "二つ", "三つ")[scene.count - 1]
    shape, size, color, ground = _JA[scene.shape], _JA[scene.size], _JA[scene.color], _JA[scene.ground]
    return (f"{ground}の背景に{size}{color}{shape}が{count}", f"{count}の{size}{color}{shape}、背景は{ground}")


_FA = _table(
    "circle=دایره square=مربع triangle=مثلث star=ستاره heart=قلب cross=صلیب ring=حلقه diamond=لوزی "
    "red=قرمز green=سبز blue=آبی yellow=زرد orange=نارنجی purple=بنفش brown=قهوه‌ای pink=صورتی "
    "small=کوچک big=بزرگ white=سفید black=سیاه grey=خاکستری"
)


def _persian(scene: Scene) -> tuple[str, ...]:
    count = ("یک", "دو", "سه")[scene.count - 1]
    shape, size, color, ground = _FA[scene.shape], _FA[scene.size], _FA[scene.color], _FA[scene.ground]
    return (f"{count} {shape} {size} {color} روی زمینه {ground}", f"روی {ground}: {count} {shape}، {size} و {color}")


_TG = _table(
    "circle=доира square=мураббаъ triangle=секунҷа star=ситора heart=дил cross=салиб ring=ҳалқа diamond=ромб "
    "red=сурх green=сабз blue=кабуд yellow=зард orange=норинҷӣ purple=бунафш brown=қаҳваранг pink=гулобӣ "
    "small=хурд big=калон white=сафед black=сиёҳ grey=хокистарӣ"
)


def _tajik(scene: Scene) -> tuple[str, ...]:
    count = ("як", "ду", "се")[scene.count - 1]
    shape, size, color, ground = _TG[scene.shape], _TG[scene.size], _TG[scene.color], _TG[scene.ground]
    linked = shape.rstrip("ъ") + "и"  # the suffix that ties a noun to its adjective
    return (
        f"{count} {linked} {size}и {color} дар заминаи {ground}",
        f"дар {ground}: {count} {shape}, {size} ва {color}",
    )


_GRAMMARS = {"en": _english, "de": _german, "tr": _turkish, "ja": _japanese, "fa": _persian, "tg": _tajik}
