# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # A federation by post
#
# Sometimes all that may leave a hospital is one file, once. Each member makes a digest; anybody who has the digests can
# fit a model to them. No rounds, no server, no open port. Here all members are on this machine, and the one exchange is
# an experiment:

# %%
from dataclasses import replace

import holdfast

letters = holdfast.Experiment(algorithm="oneshot", absence="feddig", rounds=1, partition="dirichlet:0.1")
mixed = holdfast.run(letters)
print(f"mixed rows, no promise: {mixed.final_text}")

# %% [markdown]
# Mixed rows promise nothing by themselves. Sums with noise do: one record replaced changes the odds of
# any digest at most by e^3 (but for delta):

# %%
promised = holdfast.run(replace(letters, absence={"name": "feddig", "mode": "moments", "epsilon": 3}))
print(f"epsilon 3: {promised.final_text}")

# %% [markdown]
# Withdrawal is exact: take a digest away and fit again, in seconds. With real files the same is
# `holdfast digest make` at each site and `holdfast digest train a.digest b.digest --out model` anywhere.
