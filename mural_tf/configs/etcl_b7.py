"""ETCL ([ETCL] §3.2 and §3.3): the stage that turns a trained MURAL into MURAL+ETCL, on triples of multilingual CC3M.

    python run_finetune.py --config=configs/etcl_b7.py --from=WORKDIR_OF_MURAL --workdir=…

The source is a run of `mural_etcl_reproduction.py`; its towers, heads, temperature and vocabulary count, not what is
set here. `etcl_b7.py:image_text` is the same stage with the image-text loss alone, `languages=en+de` takes the captions
in some languages. Both together are the ablations of [ETCL] §5: "+6lang" (table 7), on multilingual CC3M's six, is
`image_text,languages=en+de+fr+cs+zh+ja`; "+xx" (table 13), on one further language, `image_text,languages=cs`.
"""

from mural_tf.configs import parse
from mural_tf.configs.mural_etcl_reproduction import get_config as source_config


def get_config(arguments: str = ""):
    """Returns the configuration for "etcl" (the default) or "image_text", and languages: "image_text,languages=cs"."""
    fields = {"languages": str}
    variant, values = parse(arguments, {"etcl": fields, "image_text": fields})
    config = source_config()
    config.model = "etcl"
    config.loss.image_text_weight = 1 / 3  # of L(I, A) + L(B, I), Eq. 4
    config.loss.text_text_weight = 1 / 3  # of L(A, B)
    config.loss.label_smoothing = 0.1  # our inference: of the image terms, as in the source's training
    config.optimizer.learning_rate = 1e-4  # linearly to 0 [ETCL] §3.3
    config.optimizer.text_text_learning_rate = 1e-4
    config.optimizer.warmup_steps = 0
    config.train.steps = 3_000
    config.train.image_text_batch = 32_768  # triples
    if variant == "image_text":
        config.model = "mural"
        config.loss.image_text_weight = 1.0
        config.loss.text_text_weight = 0.0
    if "languages" in values:
        config.data.image_text_languages = tuple(values["languages"].split("+"))
    return config
