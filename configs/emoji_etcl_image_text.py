"""emoji_etcl without what is its own, ETCL's ablation "+6lang": the stage with the image-text loss alone.

    python run_finetune.py --config=configs/emoji_etcl_image_text.py --from=WORKDIR_OF_EMOJI_MURAL --workdir=…

Twice the batch, so that as many image-caption pairs are seen. For "+xx" add
--config.data.image_text_languages="('de',)". ETCL without its text term alone: emoji_etcl with
--config.loss.text_text_weight=0.
"""

from configs.emoji_etcl import get_config as etcl_config


def get_config():
    config = etcl_config()
    config.model = "mural"
    config.loss.image_text_weight = 1.0
    config.loss.text_text_weight = 0.0
    config.train.image_text_batch = 512
    config.data.shuffle_buffer = 400_000
    return config
