"""Compares an image with texts: `python rest_client.py photo.jpg "a red heart" "moyo mwekundu"` (no dependencies)."""

import base64
import json
import os
import sys
import urllib.request

SERVER = os.environ.get("SERVER", "http://localhost:8501")


def predict(model, instances):
    body = json.dumps({"instances": instances}).encode()
    with urllib.request.urlopen(f"{SERVER}/v1/models/{model}:predict", body, timeout=30) as answer:
        return json.load(answer)["predictions"]


with open(sys.argv[1], "rb") as file:
    data = base64.b64encode(file.read()).decode()
(image,) = predict("image_encoder", [{"image_bytes": {"b64": data}}])
for text, vector in zip(sys.argv[2:], predict("text_encoder", sys.argv[2:])):
    print(f"{sum(a * b for a, b in zip(image, vector)):.4f}  {text}")
