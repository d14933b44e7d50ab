# %% [markdown]
# # A human study
#
# People rank explanations without knowing which method made them. In the browser that is one command:
#
# ```sh
# exegete serve --model baseline --data generated --study films --methods occlusion,attention_rollout,random
# ```
#
# It prints an address with the admin's token; invitations are made there. This page does the same from Python, with
# people who are played by a rule. It needs the extra `web`.
# %%
import exegete
from exegete.training import train_baseline

train, dev, test = (exegete.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
train_baseline("tiny", train, dev, "baseline", arguments=arguments, masked_share=0.1)
model = exegete.load("baseline", device="cpu")
# %% [markdown]
# ## Study items
#
# A study item is a text with every method's explanation of it.

# %%
from pathlib import Path

from exegete.web.human_study.items import explain_items
from exegete.web.human_study.projects import create_project, find_project, invite_annotators
from exegete.web.human_study.storage import Storage

METHODS = ["decompx_linear", "attention_rollout", "random"]
items = explain_items(model, [dict(row) for row in test.select(range(6))], METHODS)
Path("films.db").unlink(missing_ok=True)
storage = Storage("sqlite:///films.db")
with storage.write_session() as session:
    invitations = invite_annotators(session, create_project(session, "films", items, "rank"), ["Ada", "Ben"])
list(invitations)

# %% [markdown]
# ## Answers
#
# Ada ranks by how many of the marked words are on top; Ben guesses. In the browser both would see the explanations as
# A, B and C, in an order of their own.

# %%
import random

from sqlalchemy import select

from exegete.web.human_study import answers
from exegete.web.human_study.items import restore_explanation
from exegete.web.human_study.tables import Annotator


def count_marked_words(attribution, rationale):
    """Return how many of the three highest-scored words are marked."""
    best = sorted(range(len(attribution.words)), key=lambda word: -attribution.word_scores[word])[:3]
    spans = [attribution.word_spans[word] for word in best]
    return sum(any(start < end_of and begin < end for begin, end_of in rationale) for _, start, end in spans)


chance = random.Random(0)
with storage.write_session() as session:
    for person in session.scalars(select(Annotator)):
        progress = answers.load_progress(session, person)
        while (place := progress.next_place()) is not None:
            item = answers.get_item(session, progress, place)
            rationale = test[item.number]["rationale"]
            value = {}
            for stored in item.explanations:
                value[stored.method] = chance.random()
                if person.name == "Ada":
                    value[stored.method] = count_marked_words(restore_explanation(stored), rationale)
            order = sorted(value, key=value.get, reverse=True)
            ranks = {method: order.index(method) + 1 for method in METHODS}
            answers.save_answer(
                session, progress, item, progress.next_phase(place), {"ranks": ranks, "order": METHODS}, None
            )
            session.flush()
            progress = answers.load_progress(session, person)

# %% [markdown]
# ## Results
#
# Ratings are TrueSkill's with 95 % intervals; Kendall's W says how much people agree.

# %%
from exegete.web.human_study.results import compute_findings

with storage.read_session() as session:
    result = compute_findings(session, find_project(session, "films"))
for rating in result.ratings:
    print(rating)
print(f"agreement of people, Kendall's W: {result.w_people:.2f}")

# %% [markdown]
# ## With people whom you do not know
#
# A protocol is a YAML file with all that people read and are asked: consent, instructions, practice with feedback,
# questions that show who has understood, checks with planted evidence, a questionnaire, quotas, and the code that a
# platform wants. It is the study's preregistration, too: its SHA-256 is shown to everybody and stands in the exports.
#
# ```sh
# exegete power --effect 0.65 --methods 4 --items 20
# exegete serve --protocol study.yaml --host 0.0.0.0 --name https://study.example.org
# ```
#
# `studies/people/smat-table-4.yaml` is a whole one; `exegete study schema --protocol` prints what a file may hold.
#
# Other kinds of study: `highlight` (people mark the evidence: words, or sentences where the protocol says `main:
# {unit: sentence}`), `simulate` (people predict the model without and with an explanation) and `counterfactual`:
# people know an example's answer, and predict that to a version of it with words removed or replaced, before and
# after they see an explanation of the example as it was. The rule is the protocol's `change: {how: remove, words:
# 3, balanced: true}`, drawn by its seed and the same for every method; `balanced` takes versions that change the
# answer for half of the examples, where there are such. Gains are told as of `simulate`.
#
# Answers of language models are ranked, too, by what each method says of their sources: `exegete serve --task
# generation --model my-chat-model --data jsonl:chats.jsonl --study cited`, or `make_items` of saved explanations.
#
# Answers leave as CSV, Parquet, a corpus that training reads, Label Studio or Argilla records.
