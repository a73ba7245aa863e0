"""Learning rates over steps: MURAL's linear warm-up and decay, MULE's decay by epochs."""

from __future__ import annotations

import tensorflow as tf


class WarmupLinearDecay(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from zero, then linear decay to zero, [P] §3.2 (10k and 600k steps).

    rate(s) = peak · s / warmup for s < warmup, then peak · (steps - s) / (steps - warmup), 0 from `steps` on.

    The optimisers count steps from 0. The rate is taken at s + 1 during warm-up, so that the first step is not
    lost to a zero rate (our choice; the paper's ramp starts at zero).
    """

    def __init__(self, peak: float, warmup_steps: int, steps: int):
        if not 0 <= warmup_steps < steps:
            raise ValueError(f"warmup_steps must be in [0, steps), got warmup_steps={warmup_steps}, steps={steps}.")
        self.peak, self.warmup_steps, self.steps = peak, warmup_steps, steps

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        rising = (step + 1.0) / max(self.warmup_steps, 1)
        falling = (self.steps - step) / (self.steps - self.warmup_steps)
        return self.peak * tf.clip_by_value(tf.minimum(rising, falling), 0.0, 1.0)

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps, "steps": self.steps}


class StaircaseDecay(tf.keras.optimizers.schedules.LearningRateSchedule):
    """rate(s) = peak · rate^(s // every), after a linear warm-up over the first `warmup_steps` as above."""

    def __init__(self, peak: float, warmup_steps: int, decay_rate: float, every: int):
        if not 0.0 < decay_rate <= 1.0 or every < 1:
            raise ValueError(f"decay_rate must be in (0, 1] and every at least 1, got {decay_rate} and {every}.")
        self.peak, self.warmup_steps, self.decay_rate, self.every = peak, warmup_steps, decay_rate, every

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        rising = tf.minimum((step + 1.0) / max(self.warmup_steps, 1), 1.0)
        return self.peak * rising * self.decay_rate ** tf.floor(step / self.every)

    def get_config(self):
        return {
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "decay_rate": self.decay_rate,
            "every": self.every,
        }
