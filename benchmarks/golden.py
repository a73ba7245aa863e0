"""The vectors of a checkpoint in PyTorch, in one file, with which `golden_check` compares an imported model.

    PYTHON -m benchmarks.golden FOLDER OUT.npz

needs PyTorch and transformers (for a folder with `modules.json`, Sentence-Transformers) and no other file of
this project: no TensorFlow. FOLDER holds a model of two towers (ALIGN, CLIP, SigLIP) or only of texts. Nothing is
downloaded.
"""

from __future__ import annotations

import io
import pathlib
import sys

import numpy as np

FORMAT = "golden vectors 1"
SENTENCES = [
    "a red balloon over the harbour",
    "Two Dogs RUN along the BEACH.",
    "It's 7:45 p.m.; tickets: $12.50 (or 3 for $30)!",
    "  two  spaces,\ta tab and a line's end\n",
    "Größere Straßen führen über die Brücke",
    "La cafetière de l’hôtel, déjà cassée…",
    "cafe\u0301 and nai\u0308ve, accents as characters of their own",
    "Işıklı bir İstanbul akşamı",
    "Đường phố Hà Nội buổi sáng",
    "Paka mweusi amelala juu ya kiti",
    "ΟΔΟΣ ΑΘΗΝΑΣ, ένας σκύλος",
    "МОСКВА зимой: снег и ёлка",
    "قطة سوداء على السطح",
    "שני ילדים משחקים בכדור",
    "नदी के किनारे एक पुराना मंदिर",
    "নৌকায় তিনজন জেলে",
    "மழையில் ஒரு சிவப்பு குடை",
    "แมวนอนอยู่บนเก้าอี้",
    "雨の中を走る赤いバス、２台",
    "山上有一座白色的房子。",
    "눈 덮인 산과 작은 집",
    "party🎉 with a 👩‍👧 and a ❤️",
    " ".join(f"house number {number}" for number in range(200)),
    "",
]
# Heights and widths. No picture is tall: Pillow resizes some tall pictures in another order since version 13.
SIDES = [(37, 53), (97, 301), (224, 224), (411, 640)]


def draw_pictures() -> list[bytes]:
    """Returns PNG files, a picture in RGB for each of `SIDES`.

    A picture has slow waves of colour, an edge, and stripes that only a resizing with anti-aliasing smooths.
    """
    from PIL import Image

    files = []
    for number, (height, width) in enumerate(SIDES):
        y, x = np.mgrid[:height, :width] * 2 * np.pi / np.array([height, width]).reshape(2, 1, 1)  # 0 to 2π
        waves = [127.5 + 127.5 * np.sin((number + 1) * x + (channel + 1) * y + channel) for channel in range(3)]
        pixels = np.stack(waves, axis=-1).astype(np.uint8)
        pixels[height // 4 : height // 2, width // 3 :] = (250, 60 * number, 20)  # the edge
        pixels[height // 2 :: 3, : width // 2] = 0  # the stripes
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        files.append(file.getvalue())
    return files


def golden_vectors(folder: str | pathlib.Path) -> dict[str, np.ndarray]:
    """Returns {name: array} of a checkpoint's inputs and vectors for `SENTENCES` and, if it takes them, pictures.

    Args:
      folder: the checkpoint's folder, with a `modules.json` or a `config.json`.

    Returns:
      "format", "sentences": `FORMAT` and the N sentences.
      "ids", "mask": int32 [N, T], as the text tower takes them.
      "text_vectors": float32 [N, D], L2-normalised.

      And with an image tower, for the M pictures of `draw_pictures`:

      "picture_0", …: uint8, the bytes of each PNG file.
      "pixels": float32 [M, S, S, 3] in [0, 255], resized and before they are normalised.
      "image_vectors": float32 [M, D], L2-normalised.

    Raises:
      ValueError: a folder of another kind; and transformers raises its own errors for files that it cannot read.
    """
    folder = pathlib.Path(folder)
    if (folder / "modules.json").is_file():
        vectors = _sentence_transformer(folder)
    elif (folder / "config.json").is_file():
        vectors = _two_towers(folder)
    else:
        raise ValueError(f"{folder} has neither modules.json nor config.json: expected the folder of a checkpoint.")
    return {"format": np.array(FORMAT), "sentences": np.array(SENTENCES), **vectors}


def _sentence_transformer(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the arrays of the sentences, see `golden_vectors`, for a folder of Sentence-Transformers."""
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True).float().eval()
    prompt = model.prompts.get(model.default_prompt_name) or ""  # `None`: the folder has no default prompt
    sentences = [prompt + sentence for sentence in SENTENCES]
    tokens = getattr(model, "preprocess", model.tokenize)(sentences)  # its name since version 6
    ids = _ids(tokens["input_ids"], tokens["attention_mask"])
    with torch.no_grad():
        return {**ids, "text_vectors": _normalised(model(tokens)["sentence_embedding"])}


def _two_towers(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the arrays of the sentences and pictures, see `golden_vectors`, for a folder of transformers."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    model_type = model.config.model_type
    if not hasattr(model, "get_image_features") or not hasattr(model, "get_text_features"):
        raise ValueError(f"{folder} holds a {model_type!r}: expected a model of images and texts, or modules.json.")
    text_inputs, mask = _text_inputs(folder, model.config)
    pictures = draw_pictures()
    image_inputs, pixels = _image_inputs(folder, pictures)
    with torch.no_grad():
        texts = model.get_text_features(**text_inputs)
        images = model.get_image_features(**image_inputs)
    return {
        **_ids(text_inputs["input_ids"], mask),
        "text_vectors": _normalised(texts),
        **{f"picture_{i}": np.frombuffer(picture, np.uint8) for i, picture in enumerate(pictures)},
        "pixels": pixels,
        "image_vectors": _normalised(images),
    }


def _text_inputs(folder: pathlib.Path, config) -> tuple[dict, object]:
    """Returns (the text tower's arguments for `SENTENCES`, the mask of the tokens that it attends to, int64 [N, T]).

    `folder` has the tokenizer, and `config` is the model's configuration in transformers.
    """
    import torch
    from transformers import AutoTokenizer

    length = config.text_config.max_position_embeddings
    if config.model_type == "align":
        length = min(length, 64)  # AlignProcessor's
    is_siglip = config.model_type.startswith("siglip")  # it pads texts to the full length, and attends to the padding
    padding = "max_length" if is_siglip else True
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokens = tokenizer(SENTENCES, padding=padding, truncation=True, max_length=length, return_tensors="pt")
    ids = tokens["input_ids"]
    if is_siglip:
        return {"input_ids": ids}, torch.ones_like(ids)
    return {"input_ids": ids, "attention_mask": tokens["attention_mask"]}, tokens["attention_mask"]


def _image_inputs(folder: pathlib.Path, pictures: list[bytes]) -> tuple[dict, np.ndarray]:
    """Returns (the image tower's arguments for M pictures, their pixels as `golden_vectors` has them).

    `folder` has the image processor, and `pictures` are files.
    """
    from PIL import Image
    from transformers import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    # Black and white come first, because their values tell how pixels are normalised.
    opened = [Image.new("RGB", (64, 64), color) for color in ("black", "white")]
    opened += [Image.open(io.BytesIO(picture)) for picture in pictures]
    prepared = processor(images=opened, return_tensors="pt")
    values = prepared["pixel_values"].float()  # [2 + M, 3, S, S], or NaFlex's patches, [2 + M, N, P * P * 3]
    if "spatial_shapes" in prepared:
        pixels = _squares(values, prepared["spatial_shapes"].tolist())
    else:
        black = values[:1]  # [1, 3, S, S]
        white = values[1:2]
        pixels = 255 * (values[2:] - black) / (white - black)  # [M, 3, S, S]
        pixels = pixels.permute(0, 2, 3, 1).numpy().astype(np.float32)
    return {name: value[2:] for name, value in prepared.items()}, pixels


def _squares(values, shapes: list[list[int]]) -> np.ndarray:
    """Returns NaFlex's patches as square pictures, float32 [M, S, S, 3] in [0, 255], as `data/patches.py` makes them.

    A picture's patches fill the cells of its square from the first one on. The first two pixels of the last cell hold
    the numbers of its rows and columns of patches, each as 256 a + b with b in the first channel and a in the second.

    Args:
      values: the patches, float [2 + M, N, P * P * 3]; the first two pictures are black and white.
      shapes: rows and columns of each picture's patches, [2 + M, 2].
    """
    count, patches, numbers = values.shape
    size = round((numbers / 3) ** 0.5)
    cells = int(patches**0.5) + 1  # of a side
    pixels = values.reshape(count, patches, size, size, 3).numpy()
    black = pixels[0, 0, 0, 0]  # [3]
    white = pixels[1, 0, 0, 0]
    squares = np.zeros((count - 2, cells**2, size, size, 3), np.float32)
    for square, picture, (rows, columns) in zip(squares, pixels[2:], shapes[2:]):
        square[: rows * columns] = 255 * (picture[: rows * columns] - black) / (white - black)
        square[-1, 0, :2, 0] = rows % 256, columns % 256
        square[-1, 0, :2, 1] = rows // 256, columns // 256
    squares = squares.reshape(-1, cells, cells, size, size, 3).transpose(0, 1, 3, 2, 4, 5)
    return squares.reshape(-1, cells * size, cells * size, 3)


def _ids(ids, mask) -> dict[str, np.ndarray]:
    """Returns {"ids": ids, "mask": mask} of tensors as int32 arrays."""
    return {"ids": ids.numpy().astype(np.int32), "mask": mask.numpy().astype(np.int32)}


def _normalised(output) -> np.ndarray:
    """Returns the L2-normalised vectors, float32 [B, D], of a tower's output: a tensor, or an object that has it."""
    vectors = getattr(output, "pooler_output", output).numpy().astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def main(arguments: list[str]) -> None:
    """Writes the golden vectors of a folder into a file, both named by the arguments, and prints their names.

    A mistake ends the process with one line and exit code 1.
    """
    if len(arguments) != 2:
        sys.exit("Usage: python -m benchmarks.golden FOLDER OUT.npz")
    try:
        vectors = golden_vectors(arguments[0])
        with open(arguments[1], "wb") as file:
            np.savez_compressed(file, **vectors)
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"benchmarks.golden: {error}")
    print(f"Wrote {arguments[1]}: {', '.join(vectors)}.")


if __name__ == "__main__":
    main(sys.argv[1:])
