# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Who lies?
#
# Ten members train on small pictures; two of them send random weights. Averaging believes everybody. A trust rule
# decides how much say each update has.

# %%
from dataclasses import replace

import holdfast

hostile = holdfast.Experiment(
    clients=10, partition="dirichlet:0.5", model="features", rounds=6, attack="random", attackers=2, evaluate_every=2
)
believed = holdfast.run(hostile)
judged = holdfast.run(replace(hostile, trust="jury"))
print(f"averaging: {believed.final_text}")
print(f"the jury:  {judged.final_text}")

# %% [markdown]
# Whom did the jury stop believing? A record keeps the weight of each member in each round.

# %%
last = judged.records[-1]
for client, weight in sorted(last.weights.items(), key=lambda item: item[1])[:3]:
    print(f"client {client}: {weight:.1%} of the say")

# %% [markdown]
# Rules have limits: an attacker who knows a rule can wait, whisper, or lie about others. What holds, for whom, and what
# an attacker needs is told under "When a member is hostile". Try your own attack: it is one small function.
