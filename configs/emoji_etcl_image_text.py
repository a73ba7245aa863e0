"""emoji_etcl without what is its own, ETCL's ablation "+6lang": the stage with the image-text loss alone.

    python run_finetune.py --config=configs/emoji_etcl_image_text.py --from=WORKDIR_OF_EMOJI_MURAL --workdir=…

Twice the batch, so that as many image-caption pairs are seen. For "+xx" add
--config.data.image_text_languages="('de',)". ETCL without its text term alone: emoji_etcl with
--config.loss.text_text_weight=0.
"""

from mural_tf.configs.emoji import get_config as emoji


def get_config():
    return emoji("etcl_image_text")
