# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Four hospitals, one leaves
#
# Four real hospitals (920 records, healthy or ill) come with Holdfast. They train one model; then Hungary, the second
# largest, leaves for ever after a third of the rounds. What does the model still know of Hungary's patients?

# %%
import tempfile
from dataclasses import replace
from pathlib import Path

import holdfast

plain = holdfast.Experiment(task="heart", rounds=12, scenario={"name": "intervals", "away": [["Hungary", 5, 99]]})
history = holdfast.run(plain)
print(history.final_text)

# %% [markdown]
# In a notebook `history` shows itself, and `history.plot()` draws it. As a table it has one row a round, with the
# columns a person expects:

# %%
table = history.to_pandas()
print(table[["round", "auroc", "accuracy"]].tail(3).round(3).to_string(index=False))

# %% [markdown]
# The same with FedDig: each hospital leaves a digest with the moderator, once, and Hungary's stands in for it.
# `replace` keeps everything else as it was, so that the two runs differ in nothing but this.

# %%
folder = Path(tempfile.mkdtemp())
with_digests = holdfast.run(replace(plain, absence="feddig"), out=folder / "run")
for name, found in (("nobody stands in", history), ("digests stand in", with_digests)):
    print(f"{name}: {found.final_text}")

# %% [markdown]
# The number that matters is the one on the records of those who left. Testing only on those who remain is too rosy.

# %%
last = {name: found.records[-1] for name, found in (("nobody", history), ("digests", with_digests))}
for name, record in last.items():
    apart = {metric: round(value, 3) for metric, value in record.absent_metrics.items()}
    print(f"{name}: on Hungary's records {apart}")

# %% [markdown]
# In one hospital 94 % are ill, so accuracy says nothing there: AUROC and balanced accuracy lead for two classes.

# %% [markdown]
# ## New patients, on another machine
#
# The run has left a `model.safetensors`. Copy that one file: it knows its schema and its encoder, so neither the run
# nor anybody's records are needed where it is used. New patients come as a CSV with the schema's columns; what is
# not known is a "?", as this schema says.

# %%
columns = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal"
(folder / "new.csv").write_text(f"{columns}\n41,0,2,120,204,0,0,172,0,0.5,1,0,3\n67,1,4,160,?,0,2,108,1,2.8,2,3,7\n")

model = holdfast.load_model(folder / "run" / "model.safetensors")
for patient in model.predict(folder / "new.csv"):
    print({name: f"{share:.0%}" for name, share in zip(model.class_names, patient, strict=True)})

# %% [markdown]
# The same without Python: `holdfast predict model.safetensors new.csv --out predictions.csv`.
