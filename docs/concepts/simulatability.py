# %% [markdown]
# # Simulatability
#
# An explanation is useful if somebody who reads it understands the model better, and can guess what it will predict.
# Simulatability is the share of such guesses that agree with the model. It judges explanations by what a student, a
# person or another model, learns from them.
# %%
import expound

train, dev, test = (expound.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
expound.train("tiny", (train, dev), "baseline", output_dir="baseline", options={"masked_share": 0.1}, args=arguments)
model = expound.load("baseline", device="cpu")

# %% [markdown]
# The student here counts words (Naive Bayes). It studies a few reviews with the model's *predictions*, not the true
# labels. To explain a prediction to it, we show only the three words with the highest scores. Afterwards it reads new
# reviews as a whole, without explanations.
# %%
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline

lessons, exam = train.select(range(30)), test.select(range(200))
predictions = [item.prediction.value for item in expound.attribute(model, exam, method="random")]
for method in ("occlusion", "random"):
    explained = expound.attribute(model, lessons, method=method)
    labels = [item.prediction.value for item in explained]
    for shown in (None, 3):
        texts = [" ".join(word for word, _ in item.top(shown or len(item.units))) for item in explained]
        student = make_pipeline(CountVectorizer(), MultinomialNB()).fit(texts, labels)
        agreement = (student.predict(exam["text"]) == predictions).mean()
        print(method, "3 words" if shown else "all words", agreement)

# %% [markdown]
# The lines with all words are the student without explanations, so they are equal. An explanation is worth what it
# adds to them, and `random` shows what three words are worth without any knowledge of the model. With 30 reviews and
# one run, small differences are chance.
#
# ## When it misleads
# - **Explanations must not be shown at the exam.** They may give the prediction away: an explanation that contains the
#   prediction itself makes any student perfect and explains nothing.
# - **The student matters.** One who learns the task without help has nothing to gain, and what helps a word counter
#   need not help a person.
# - **It is not [faithfulness](faithfulness.md).** Words that merely go together with a prediction can teach it too.
#
# A [human study](../tutorials/08_a_human_study.md) lets people predict a model. [SMaT](../recipes/smat.md) trains
# explanations that help a student ([tutorial](../tutorials/03_teach_a_student.md)).
