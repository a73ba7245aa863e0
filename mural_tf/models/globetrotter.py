"""Globetrotter (Surís et al., 2022): languages connected by the similarity of images. "Its code" is the authors'.

    L = L_t + λ1 L_v + λ2 L_x + λ3 L_c          [Globetrotter] Eq. 5

The equations are in `losses/globetrotter.py`.

| term | here | compares |
|---|---|---|
| L_t | `text_text`, weight 1 | sentences with each other, weighted by how similar their images are |
| L_v | `image_image`, λ1 | two augmented views of an image |
| L_x | `image_text`, λ2 | each view with the caption, both directions, averaged over the views |
| L_c | `cloze`, λ3 | masked tokens of the caption |

All with one fixed temperature, from its code. A weight of 0 leaves a term out. The image head is part of the image
tower (`image_tower.head_size`). There are two text heads, as in its code: on the [CLS] state for images, and on the
mean of the other tokens for texts; with `shared_head` one, on the [CLS] state, as in the paper.

Baselines of [Globetrotter] §5.1: "fully supervised", `method.alpha="pairs"`, takes L_t's pairs from translation pairs
(α = 1); "text only", no image tower and only the cloze term.

Departure from both: L_v and L_x leave out negatives that share an image or caption. (α^v and α^x are the first view's,
as in its code.)

Departures from its code:
- captions are masked for L_c only, in a second pass; its code masks them for all losses;
- β compares sentences, as in the paper; its code compares their tokens;
- L_x is the sum of both directions, as in Eq. 4; its code takes their mean, so its λ2 of 1 is a weight of 0.5 here;
- L_x compares the captions with one view after the other; in its code a caption's candidates are all 2N views, so that
  the other view of its own image is a negative.

Departures from the paper, in `configs/globetrotter_resnet18.py:paper` too:
- L_v is the mean over 2N anchors; Eq. 3 adds them up, where L_t and L_x have N terms: λ1 weighs L_v half as much here;
- L_c is the mean over all masked tokens of the batch, L_t and L_x are means over sentences; the paper's are sums;
- the similarities are mapped to [0, 1] (B.1) only in α. The softmax of all three losses takes the cosine itself, as
  its code does; the map would act there as a temperature twice as high.
"""

from __future__ import annotations

import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.data.streams.captions import ClozeCaptions
from mural_tf.encoders.layers import ClozeHead, MlpHead
from mural_tf.losses.contrastive import contrastive_loss
from mural_tf.losses.globetrotter import (
    DEFINITIONS,
    cloze_loss,
    cloze_sums,
    nt_xent,
    transitive_loss,
    transitive_weights,
)
from mural_tf.losses.pairs import Pairs, Rows
from mural_tf.models.dual_encoder import Embedding, Task
from mural_tf.models.temperature import LearnedTemperature

VIEWS = ("view_0", "view_1")
ABOVE_ZERO = "alpha_above_zero"  # logged next to the losses


class Globetrotter(LearnedTemperature):
    """Batches hold `view_0`, `view_1`, `image_id`, `caption` (tokens), `caption_id` and `cloze` (masked tokens).

    With `method.alpha="pairs"` also `text_a`, `text_b` and their ids. Without image terms, only captions.
    """

    title = "Globetrotter: connecting languages by connecting images (Surís et al., 2022)"
    fields = dict(
        image_image_weight=0.0,  # λ1 of L_v, two views of one image
        **ClozeCaptions.fields,  # the weight λ3 of L_c, masked tokens
        alpha="code",  # α, see losses/globetrotter.py; "paper"; "pairs": text pairs instead (supervised)
        alpha_divided=True,  # L_t divided by the sum of α, or else by the number of captions
    )
    embeddings = {
        "view_0": Embedding("view_0"),
        "view_1": Embedding("view_1"),
        "caption": Embedding("caption", head="image_text"),
        "sentence": Embedding("caption", head="text_text"),
        "text_a": Embedding("text_a", head="text_text"),
        "text_b": Embedding("text_b", head="text_text"),
        "cloze": Embedding("cloze", function="predict_masked"),
    }

    def __init__(self, image_encoder, text_encoder, config, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        self._check()
        if self.options.cloze_weight:
            table = text_encoder.get_layer("embeddings").token_table
            self.cloze_head = ClozeHead(*table.shape, name="cloze_head")

    @property
    def tasks(self):
        """{name: `Task`}; the cloze term takes the captions of "views" where another term reads them anyway."""
        weights_of_views = [self.options.image_image_weight, self.loss_config.image_text_weight]
        if self._is_supervised:
            text_text = Task("text_text", ("text_a", "text_b"), pair=("text_a", "text_b"))
        else:
            text_text = Task("views", ("sentence", "view_0", "caption"))
            weights_of_views.append(self.loss_config.text_text_weight)
        return {
            "text_text": text_text,
            "image_image": Task("views", VIEWS),
            "image_text": Task("views", (*VIEWS, "caption"), pair=("view_0", "caption")),
            "cloze": Task("views" if any(weights_of_views) else "captions", ("cloze",)),
        }

    @property
    def _is_supervised(self) -> bool:
        """Whether L_t takes its pairs from translation pairs."""
        return self.options.alpha == "pairs"

    @property
    def also_reads(self):
        return ("image_id",) if self.image_parts else ()  # no id by content: views of one image are never alike

    def build_head(self, name):
        hidden = self.text_tower.hidden_size
        columns = None  # all: the [CLS] state
        if not self.shared_head:  # the tower's output is the [CLS] state and the mean of the others, `FirstAndMean`
            columns = {"image_text": (0, hidden), "text_text": (hidden, 2 * hidden)}[name]
        return MlpHead(hidden, self.embedding_size, columns, name=f"{name}_head")

    def width(self, head):
        return 2 if head == "predict_masked" else self.embedding_size  # 2: see `cloze_sums`

    @property
    def fixed_temperature(self) -> tf.Tensor:
        """`loss.temperature`, or the temperature that the starting weights were trained with."""
        return tf.stop_gradient(self.temperature)

    def predict_masked(self, tokens: dict, training: bool) -> tf.Tensor:
        """Returns `cloze_sums` of B texts, float32 [B, 2].

        Args:
          tokens: as for the text tower, and "places", "targets" and "weights", [B, K]: where pieces were masked, the
            pieces, and 1 for each masked piece, else 0.
          training: whether the tower is in training.
        """
        states = self.text_encoder.token_states(tokens, training=training)  # [B, T, hidden]
        masked_states = tf.gather(states, tokens["places"], batch_dims=1)  # [B, K, hidden]
        token_table = self.text_encoder.get_layer("embeddings").token_table
        logits = self.cloze_head(tf.cast(masked_states, tf.float32), token_table)
        return cloze_sums(logits, tokens["targets"], tokens["weights"])

    # The losses take `Rows` of the embeddings that their task compares, [N, D] each, and return float32 scalars.

    def text_text_loss(self, *compared):
        """Returns L_t."""
        if self._is_supervised:
            return self._supervised_loss(*compared)
        return self._transitive_loss(*compared)

    def _transitive_loss(self, sentence, view_0, caption, ids):
        """Returns L_t with α by the similarity of images."""
        alpha = self._alpha(view_0, caption)
        return transitive_loss(sentence, alpha, self.fixed_temperature, divided=self.options.alpha_divided)

    def _supervised_loss(self, text_a, text_b, ids):
        """Returns L_t with α = 1 for the other side of a text pair and 0 for all other texts."""
        pairs = Pairs(text_a, text_b, self.same_texts(ids))  # our choice, as for L_v and L_x
        return nt_xent(pairs, self.fixed_temperature)

    def image_image_loss(self, view_0, view_1, ids):
        """Returns L_v."""
        pairs = Pairs(view_0, view_1, self.same(ids, "image_id"))
        return nt_xent(pairs, self.fixed_temperature)

    def image_text_loss(self, view_0, view_1, caption, ids):
        """Returns L_x, the mean of both views' contrastive losses with the captions."""
        same = self.same(ids, "image_id", "caption_id")
        losses = []
        for view in (view_0, view_1):
            pairs = Pairs(view, caption, same)
            losses.append(contrastive_loss(pairs, self.fixed_temperature))
        return tf.add_n(losses) / len(losses)

    def cloze_loss(self, cloze, ids):
        """Returns L_c of `cloze_sums`, `Rows` [N, 2]."""
        return cloze_loss(cloze)

    def _alpha(self, view_0: Rows, caption: Rows) -> tf.Tensor:
        """Returns α, float32 [N, N], of the first views and the captions of N images."""
        return transitive_weights(view_0.values, caption.values, self.options.alpha)

    @property
    def log_names(self):
        names = super().log_names
        if "sentence" in self.used:
            names.append(ABOVE_ZERO)
        return names

    def objective(self, embeddings, ids, rows):
        """As `DualEncoder.objective`; with L_t by images it logs `alpha_above_zero`, too."""
        losses, logs = super().objective(embeddings, ids, rows)
        if "sentence" in embeddings:
            sides = {name: Rows.of(embeddings[name], rows[name]) for name in ("view_0", "caption", "sentence")}
            logs[ABOVE_ZERO] = self.alpha_above_zero(**sides)
        return losses, logs

    def alpha_above_zero(self, view_0: Rows, caption: Rows, sentence: Rows) -> tf.Tensor:
        """Returns how many of the N (N - 1) pairs of captions have α above 0, as a share, a float32 scalar.

        It counts this replica's rows of α, so that the replicas' shares add up to the batch's.
        """
        alpha = self._alpha(view_0, caption)
        total = tf.cast(tf.shape(alpha)[0], tf.float32)
        positives = tf.reduce_sum(tf.cast(sentence.own_of(alpha) > 0, tf.float32))
        return tf.math.divide_no_nan(positives, total * (total - 1.0))

    def weights_by_part(self):
        parts = super().weights_by_part()
        if hasattr(self, "cloze_head"):
            parts["cloze_head"] = self.cloze_head
        return parts

    def build_variables(self):
        super().build_variables()
        if hasattr(self, "cloze_head"):
            embeddings = self.text_encoder.get_layer("embeddings")
            self.cloze_head(tf.zeros([1, 1, embeddings.hidden_size]), embeddings.token_table)

    def _check(self) -> None:
        """Raises `UserError` for a text tower or fields that the method cannot have."""
        options = self.options
        tower = self.text_tower
        pooling = "first" if self.shared_head else "first_and_mean"
        if tower.pooling != pooling or not hasattr(self.text_encoder, "token_states"):
            raise UserError(
                f"globetrotter with shared_head={self.shared_head} needs text_tower.name=bert and "
                f"text_tower.pooling={pooling}; got {tower.name} and {tower.pooling}."
            )
        choices = (*DEFINITIONS, "pairs")
        if options.alpha not in choices:
            raise UserError(f"Unknown method.alpha {options.alpha!r}; known: {', '.join(choices)}.")
        self.loss_weights()  # raises if all weights are 0
