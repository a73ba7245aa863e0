"""Settings of every test: quiet TensorFlow, CPU only, and the scripts' folder importable."""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
