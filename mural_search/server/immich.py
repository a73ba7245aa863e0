"""A machine-learning server for immich: the vectors of its smart search, under one of immich's own model names.

GET  /ping      "pong"
POST /predict   a form with `entries`, JSON such as {"clip": {"textual": {"modelName": "ViT-B-32__openai"}}}, and with
                `text`, or `image` for "visual" → {"clip": "[0.1, …]"}, the vector as a string of JSON; for a picture
                also "imageHeight" and "imageWidth"

immich takes a model's number of dimensions from its name, so the name must be one of its own. Other tasks (faces, words
in pictures) and other names are refused. No immich was run against this: the form is of immich's sources, 2026-11.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import difflib
import json

import numpy as np
from aiohttp import web

from mural_lite.config import has_images
from mural_lite.errors import UserError
from mural_lite.pictures import open_image
from mural_search.queries import LONGEST_SENTENCE
from mural_search.ranking import QUESTIONS, prompt_of
from mural_search.server.limits import BadRequest, check_picture

TASK = "clip"
VISUAL = "visual"
TEXTUAL = "textual"
NAMES = {  # dimensions -> immich's models
    512: "RN101__openai RN101__yfcc15m ViT-B-16__laion400m_e31 ViT-B-16__laion400m_e32 ViT-B-16__openai "
    "ViT-B-32__laion2b-s34b-b79k ViT-B-32__laion2b_e16 ViT-B-32__laion400m_e31 ViT-B-32__laion400m_e32 "
    "ViT-B-32__openai XLM-Roberta-Base-ViT-B-32__laion5b_s13b_b90k XLM-Roberta-Large-Vit-B-32",
    640: "RN50x4__openai ViT-B-16-plus-240__laion400m_e31 ViT-B-16-plus-240__laion400m_e32 "
    "XLM-Roberta-Large-Vit-B-16Plus",
    768: "LABSE-Vit-L-14 RN50x16__openai ViT-B-16-SigLIP-256__webli ViT-B-16-SigLIP-384__webli "
    "ViT-B-16-SigLIP-512__webli ViT-B-16-SigLIP-i18n-256__webli ViT-B-16-SigLIP__webli ViT-B-16-SigLIP2__webli "
    "ViT-B-32-SigLIP2-256__webli ViT-L-14-336__openai ViT-L-14-quickgelu__dfn2b ViT-L-14__laion2b-s32b-b82k "
    "ViT-L-14__laion400m_e31 ViT-L-14__laion400m_e32 ViT-L-14__openai XLM-Roberta-Large-Vit-L-14 "
    "nllb-clip-base-siglip__mrl nllb-clip-base-siglip__v1",
    1024: "RN50__cc12m RN50__openai RN50__yfcc15m RN50x64__openai ViT-H-14-378-quickgelu__dfn5b "
    "ViT-H-14-quickgelu__dfn5b ViT-H-14__laion2b-s32b-b79k ViT-L-16-SigLIP-256__webli ViT-L-16-SigLIP-384__webli "
    "ViT-L-16-SigLIP2-256__webli ViT-L-16-SigLIP2-384__webli ViT-L-16-SigLIP2-512__webli ViT-g-14__laion2b-s12b-b42k "
    "XLM-Roberta-Large-ViT-H-14__frozen_laion5b_s13b_b90k",
    1152: "ViT-SO400M-14-SigLIP-384__webli ViT-SO400M-14-SigLIP2-378__webli ViT-SO400M-14-SigLIP2__webli "
    "ViT-SO400M-16-SigLIP2-256__webli ViT-SO400M-16-SigLIP2-384__webli ViT-SO400M-16-SigLIP2-512__webli "
    "nllb-clip-large-siglip__mrl nllb-clip-large-siglip__v1",
    1536: "ViT-gopt-16-SigLIP2-256__webli ViT-gopt-16-SigLIP2-384__webli",
}
DIMENSIONS = {name: dimensions for dimensions, names in NAMES.items() for name in names.split()}


def check_name(name: str, path: str = "", dimensions: int = 0) -> None:
    """Raises `UserError` for a name that is not immich's, or whose model has more or fewer dimensions than our model.

    Args:
      name: the name of one of immich's models.
      path: our model's path, for the message.
      dimensions: the number of dimensions of our model's vectors; 0 if it is not known yet.
    """
    if name not in DIMENSIONS:
        similar_names = difflib.get_close_matches(name, DIMENSIONS, n=1)
        hint = f"; did you mean {similar_names[0]}?" if similar_names else ", such as ViT-B-16-SigLIP2__webli."
        raise UserError(f"--immich={name}: immich has no model of this name{hint}")
    if dimensions and DIMENSIONS[name] != dimensions:
        hint = f"no model of immich has {dimensions}"
        if dimensions in NAMES:
            hint = f"names with {dimensions} are {NAMES[dimensions].replace(' ', ', ')}"
        raise UserError(
            f"--immich={name} has {DIMENSIONS[name]} dimensions, and the model {path} {dimensions}: {hint}."
        )


def immich_routes(embedder, name: str) -> list[web.RouteDef]:
    """Returns the routes of immich's requests, GET /ping and POST /predict.

    Args:
      embedder: the model that encodes texts and pictures.
      name: the name of one of immich's models, under which this model answers.

    Raises:
      UserError: the name is not immich's or has other dimensions, or the model embeds only texts.
    """
    check_name(name, embedder.path, embedder.embedding_size)
    if not has_images(embedder.config.image_tower):
        raise UserError(f"--immich: {embedder.path} is a model of texts alone: give one with both towers.")
    server = _Immich(embedder, name)
    return [web.get("/ping", server.ping), web.post("/predict", server.predict)]


class _Immich:
    """Answers immich's requests under the name of one of its models; encodes one text or picture at a time."""

    def __init__(self, embedder, name: str):
        self._embedder = embedder
        self._name = name
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "immich")

    async def ping(self, request: web.Request) -> web.Response:
        """Answers GET /ping, by which immich asks whether the server runs."""
        return web.Response(text="pong")

    async def predict(self, request: web.Request) -> web.Response:
        """Answers POST /predict with the vector of a text or of a picture; raises `BadRequest` for a wrong form."""
        try:
            form = await request.post()
        except (ValueError, AssertionError, RuntimeError) as error:  # aiohttp's, of a damaged form
            raise BadRequest(f"The form cannot be read: {error}.", 422) from None
        tower = self._tower(form.get("entries"))
        if tower == VISUAL:
            content = form.get("image")
            encode = self._answer_picture
        else:
            content = form.get("text")
            encode = self._answer_text
        if isinstance(content, web.FileField):
            content = content.file.read()
        answer = await asyncio.get_running_loop().run_in_executor(self._thread, encode, content)
        return web.json_response(answer)

    def _tower(self, entries: object) -> str:
        """Returns the tower that a request asks for, "visual" or "textual".

        Args:
          entries: the form's part `entries`, see the module's docstring.

        Raises:
          BadRequest: the entries cannot be read, or ask for another task, another model or several models.
        """
        try:
            requests = []
            for task, towers in json.loads(entries).items():  # {"clip": {"textual": {"modelName": …}}}
                requests += [(task, tower, options["modelName"]) for tower, options in towers.items()]
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
            raise BadRequest(f'entries must be JSON such as {{"{TASK}": {{"textual": …}}}}.', 422) from None
        for task, tower, model in requests:
            if task != TASK or tower not in (VISUAL, TEXTUAL):
                raise BadRequest(f"This server answers {TASK} alone, not {task[:40]} ({tower[:40]}).")
            _, _, name = str(model).rpartition("/")
            if name.replace(":", "_") != self._name:  # immich also writes "ORGANISATION/NAME::WEIGHTS"
                raise BadRequest(f"This server is {self._name}, not {str(model)[:80]!r}.")
        if len(requests) != 1:
            raise BadRequest(f"entries ask for {len(requests)} models: expected one.", 422)
        _, tower, _ = requests[0]
        return tower

    def _answer_text(self, text: object) -> dict[str, object]:
        """Returns the answer for a text, {"clip": vector}; raises `BadRequest` for a missing or too long text."""
        if not isinstance(text, str):
            raise BadRequest("The form has no text.")
        if len(text) > LONGEST_SENTENCE:
            raise BadRequest(f"The text has {len(text):,} characters; at most {LONGEST_SENTENCE:,} are read.")
        prompt = prompt_of(self._embedder, QUESTIONS)
        return {TASK: _vector(self._embedder.encode_text([text], progress=False, **prompt))}

    def _answer_picture(self, data: object) -> dict[str, object]:
        """Returns the answer for an encoded picture, {"clip": vector, "imageHeight": pixels, "imageWidth": pixels}.

        Raises `BadRequest` for a missing, too large or unreadable picture.
        """
        if not isinstance(data, (bytes, bytearray)):
            raise BadRequest("The form has no image.")
        check_picture(data)
        try:
            vector = _vector(self._embedder.encode_image([bytes(data)], progress=False))
            header = open_image(data)
        except UserError:
            raise BadRequest("The picture cannot be read: expected a whole JPEG, PNG or WebP.") from None
        return {TASK: vector, "imageHeight": header.height, "imageWidth": header.width}


def _vector(vectors: np.ndarray) -> str:
    """Returns the vector in an array [1, D] as immich takes it, a string of JSON: "[0.1, -0.2, …]"."""
    return json.dumps(vectors[0].astype(float).round(7).tolist())  # 7 digits, as float32 has about
