"""Globetrotter ([P] = Surís et al., 2022; [C] = the authors' code): languages connected by the likeness of images.

    L = L_t + λ1 L_v + λ2 L_x + λ3 L_c          [P] Eq. 5

| term | here | compares |
|---|---|---|
| L_t | `text_text`, weight 1 | sentences with each other, as far as their images are alike (`losses/transitive.py`) |
| L_v | `image_image`, λ1 | two augmented views of an image (`losses/nt_xent.py`) |
| L_x | `image_text`, λ2 | each view with the caption, both directions, averaged over the views |
| L_c | `cloze`, λ3 | masked tokens of the caption (`losses/cloze.py`) |

All with one fixed temperature [C]. A weight of 0 leaves a term out. The image head is part of the image tower
(`image_tower.head_size`). There are two text heads [C]: on the [CLS] state for images, and on the mean of the other
tokens for texts; with `shared_head` one, on the [CLS] state [P].

Baselines of [P] §5.1: "fully supervised", `loss.alpha="pairs"`, takes L_t's pairs from translation pairs (α = 1);
"text only", no image tower and the cloze term alone.

Departures: captions are masked for L_c only ([C]: for all losses), in a second pass; L_v and L_x leave out negatives
that share an image or caption; α^v and α^x are those of the first view, as in [C], and β compares sentences, not
tokens.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.encoders.layers import ClozeHead, MlpHead
from mural_tf.errors import UserError
from mural_tf.losses.cloze import cloze_loss, cloze_sums
from mural_tf.losses.contrastive import contrastive_loss
from mural_tf.losses.nt_xent import ANCHORS, nt_xent
from mural_tf.losses.transitive import DEFINITIONS, transitive_loss, transitive_weights
from mural_tf.models.dual_encoder import ContrastiveModel

IMAGE_TASKS = ("image_image", "image_text")


class Globetrotter(ContrastiveModel):
    """Batches hold `view_0`, `view_1`, `image_id`, `caption` (tokens), `caption_id` and `cloze` (masked tokens).

    With `loss.alpha="pairs"` also `text_a`, `text_b` and their ids. Without image terms, captions alone.
    """

    image_parts = ("view_0", "view_1")

    def __init__(self, image_encoder, text_encoder, config, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        _check(config, text_encoder)
        self.shared_head = config.shared_head
        hidden = config.text_tower.hidden_size
        columns = ((0, hidden), (hidden, 2 * hidden))  # of `FirstAndMean`
        for name, part in zip(self.head_names, columns):
            part = None if self.shared_head else part
            setattr(self, f"{name}_head", MlpHead(hidden, self.embedding_size, part, name=f"{name}_head"))
        if "cloze" in self.loss_weights():
            table = text_encoder.get_layer("embeddings").token_table
            self.cloze_head = ClozeHead(*table.shape, name="cloze_head")

    @property
    def head_names(self):
        return ("image_text",) if self.shared_head else ("image_text", "text_text")

    @property
    def has_images(self) -> bool:
        """Whether any term looks at images: those that compare them, and L_t unless its pairs are given."""
        weights = self.loss_weights()
        return any(task in weights for task in IMAGE_TASKS) or ("text_text" in weights and not self.is_supervised)

    @property
    def is_supervised(self) -> bool:
        """Whether L_t's pairs come from translation pairs."""
        return self.loss_config.alpha == "pairs" and self.loss_config.text_text_weight > 0

    @property
    def streams(self):
        return ("views" if self.has_images else "captions", *(("text_text",) if self.is_supervised else ()))

    @property
    def example_names(self):
        return (
            *(self.image_parts if self.has_images else ()),
            "caption",
            *(("cloze",) if "cloze" in self.loss_weights() else ()),
            *(("text_a", "text_b") if self.is_supervised else ()),
        )

    @property
    def embedding_shapes(self):
        shapes = {name: (name, 2 if name == "cloze" else self.embedding_size) for name in self.example_names}
        return {**shapes, "sentence": ("caption", self.embedding_size)}

    @property
    def pairs(self):
        supervised = {"text_text": ("text_a", "text_b")} if self.is_supervised else {}
        return {"image_text": ("view_0", "caption"), **supervised}

    @property
    def log_names(self):
        return ("alpha_above_zero",) if self._uses_alpha else ()

    @property
    def _uses_alpha(self) -> bool:
        return "text_text" in self.loss_weights() and not self.is_supervised

    @property
    def fixed_temperature(self) -> tf.Tensor:
        """`loss.temperature`, or what the weights that training started from were trained with."""
        return tf.stop_gradient(self.temperature)

    def encode(self, batch, training):
        embeddings = {}
        if self.has_images:
            both = tf.concat([batch[name] for name in self.image_parts], axis=0)  # one BatchNorm group
            views = tf.split(self.embed_images(both, training), 2)
            embeddings.update(zip(self.image_parts, views))
        texts = ["caption", *(("text_a", "text_b") if self.is_supervised else ())]
        states = self.text_states([batch[name] for name in texts], training)
        embeddings["caption"] = self.project_texts(states[0], "image_text")
        embeddings["sentence"] = self.project_texts(states[0], self.head_names[-1])
        for name, state in zip(texts[1:], states[1:]):
            embeddings[name] = self.project_texts(state, self.head_names[-1])
        if "cloze" in self.loss_weights():
            embeddings["cloze"] = self._predict_masked(batch["cloze"], training)
        return embeddings

    def _predict_masked(self, tokens: dict, training: bool) -> tf.Tensor:
        """float32 [B, 2] of each text, see `cloze_sums`."""
        states = self.text_encoder.token_states(tokens, training=training)  # [B, T, hidden]
        states = tf.cast(tf.gather(states, tokens["places"], batch_dims=1), tf.float32)  # [B, K, hidden]
        logits = self.cloze_head(states, self.text_encoder.get_layer("embeddings").token_table)
        return cloze_sums(logits, tokens["targets"], tokens["weights"])

    def losses(self, embeddings, batch, rows):
        terms = {
            "text_text": self._supervised_loss if self.is_supervised else self._transitive_loss,
            "image_image": self._view_loss,
            "image_text": self._cross_modal_loss,
            "cloze": lambda embeddings, batch, rows: cloze_loss(embeddings["cloze"], rows["cloze"]),
        }
        return {task: terms[task](embeddings, batch, rows) for task in self.loss_weights()}

    def _transitive_loss(self, embeddings, batch, rows):
        return transitive_loss(
            embeddings["sentence"],
            self._alpha(embeddings),
            self.fixed_temperature,
            divided=self.loss_config.alpha_divided,
            rows=rows["sentence"],
        )

    def _supervised_loss(self, embeddings, batch, rows):
        return nt_xent(  # L_t with α = 1 for the other side of a text pair and 0 for all other texts
            embeddings["text_a"], embeddings["text_b"], self.fixed_temperature, rows=rows["text_a"]
        )

    def _view_loss(self, embeddings, batch, rows):
        return nt_xent(
            embeddings["view_0"],
            embeddings["view_1"],
            self.fixed_temperature,
            anchors=self.loss_config.view_anchors,
            matches=(batch["image_id"],) if self.loss_config.mask_duplicates else (),
            rows=rows["view_0"],
        )

    def _cross_modal_loss(self, embeddings, batch, rows):
        matches = (batch["image_id"], batch["caption_id"]) if self.loss_config.mask_duplicates else ()
        losses = [
            contrastive_loss(
                embeddings[view], embeddings["caption"], self.fixed_temperature, matches=matches, rows=rows[view]
            )
            for view in self.image_parts
        ]
        return tf.add_n(losses) / len(losses)

    def _alpha(self, embeddings) -> tf.Tensor:
        return transitive_weights(
            embeddings["view_0"], embeddings["caption"], self.loss_config.alpha, self.loss_config.alpha_margin
        )

    def measures(self, embeddings, batch, rows):
        """The share of pairs of captions with α above 0, of all i ≠ j."""
        if not self._uses_alpha:
            return {}
        first, count = rows["sentence"]
        alpha = self._alpha(embeddings)
        total = tf.cast(tf.shape(alpha)[0], tf.float32)
        positives = tf.reduce_sum(tf.cast(alpha[first : first + count] > 0, tf.float32))
        return {"alpha_above_zero": tf.math.divide_no_nan(positives, total * (total - 1.0))}

    def loss_weights(self):
        weights = {
            "text_text": self.loss_config.text_text_weight,
            "image_image": self.loss_config.image_image_weight,
            "image_text": self.loss_config.image_text_weight,
            "cloze": self.loss_config.cloze_weight,
        }
        return {task: weight for task, weight in weights.items() if weight}

    def weights_by_part(self):
        parts = super().weights_by_part()
        return {**parts, "cloze_head": self.cloze_head} if hasattr(self, "cloze_head") else parts

    def build_variables(self):
        super().build_variables()
        if hasattr(self, "cloze_head"):
            embeddings = self.text_encoder.get_layer("embeddings")
            self.cloze_head(tf.zeros([1, 1, embeddings.hidden_size]), embeddings.token_table)


def _check(config, text_encoder) -> None:
    loss, pooling = config.loss, "first" if config.shared_head else "first_and_mean"
    if config.text_tower.pooling != pooling or not hasattr(text_encoder, "token_states"):
        raise UserError(
            f"globetrotter with shared_head={config.shared_head} needs text_tower.name=bert and "
            f"text_tower.pooling={pooling}; got {config.text_tower.name} and {config.text_tower.pooling}."
        )
    known = (*DEFINITIONS, "pairs")
    if loss.alpha not in known:
        raise UserError(f"Unknown loss.alpha {loss.alpha!r}; known: {', '.join(known)}.")
    if loss.view_anchors not in ANCHORS:
        raise UserError(f"Unknown loss.view_anchors {loss.view_anchors!r}; known: {', '.join(ANCHORS)}.")
    if not 0 <= loss.alpha_margin < 1:
        raise UserError(f"loss.alpha_margin={loss.alpha_margin} must be at least 0 and below 1.")
    if not 0 < loss.cloze_share <= 1:
        raise UserError(f"loss.cloze_share={loss.cloze_share} must be above 0 and at most 1.")
    if not any((loss.text_text_weight, loss.image_image_weight, loss.image_text_weight, loss.cloze_weight)):
        raise UserError("globetrotter without any loss: set a weight above 0.")
