"""Training: the loop around a method's step, and the state that a run keeps so that it may be stopped anywhere.

fit.py           the loop: restore, Keras' `fit` until the last step, save
callbacks.py     between the steps: numbers, checkpoints, evaluation, signals
checkpoints.py   weights, slots of optimisers, counters; data_progress.py: the place in the data
workdir.py       the run's folder; in it: trained_model.py: the model; metrics_file.py: the numbers; trained_on.py: the
                 data; environment.py: packages and processor
prepare.py       a data folder and a vocabulary, made where they are missing
strategy.py      which devices train, and what several workers agree on
cost.py          what a step needs here, measured
tpu_forecast.py  what the TPU's own compiler says of a step; tpu_slices.py, tpu_lowering.py, tpu_compiler.py and
                 tpu_program.py are its parts; tpu_check.py: the check without the compiler
"""
