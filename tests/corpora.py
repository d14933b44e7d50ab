"""A few rows of every corpus that a reader reads from disk, in the layout in which it is published."""

import csv as table
import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

ROWS = [{"text": f"a small town {n}", "label": "good" if n % 2 else "bad", "rationale": [[2, 7]]} for n in range(30)]
PARTS = ("train", "dev", "test")


def lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def cells(path, rows, **options):
    with path.open("w", newline="", encoding="utf-8") as file:
        table.writer(file, **options).writerows(rows)
    return path


def write_tar(path, **members):
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))


def sst(folder):
    for part in PARTS:
        (folder / f"{part}.txt").write_text("(4 (2 a) (4 (3 fine) (2 film)))\n(0 (2 a) (0 bore))\n")
    return folder


def movies(folder):
    documents(folder, **{"negR_000.txt": "a dull film\nwith a lid", "posR_1.txt": "fine , so\nfine"})
    evidence = [[{"docid": "negR_000.txt", "start_token": 1, "end_token": 3, "start_sentence": 0, "end_sentence": 1}]]
    row = {"annotation_id": "negR_000.txt", "classification": "NEG", "evidences": evidence, "query_type": None}
    row |= {"query": "What is the sentiment of this review?", "docids": None}
    for part in ("train", "val", "test"):
        lines(
            folder / f"{part}.jsonl",
            [row, row | {"annotation_id": "posR_1.txt", "classification": "POS", "evidences": []}],
        )
    return folder


def documents(folder, **texts):
    (folder / "docs").mkdir()
    for name, text in texts.items():
        (folder / "docs" / name).write_text(text, encoding="utf-8")


def eraser_task(folder, rows, **texts):
    """A task with questions about documents, all its rows in each split."""
    documents(folder, **texts)
    for part in ("train", "val", "test"):
        lines(folder / f"{part}.jsonl", rows)
    return folder


def evidence(docid, start, end):
    return {"docid": docid, "start_token": start, "end_token": end, "start_sentence": 0, "end_sentence": 1, "text": "…"}


def snli(folder):
    for part in PARTS:
        row = {"premise": "two women hug", "hypothesis": "they sleep", "label": "contradiction"}
        lines(folder / f"{part}.jsonl", [row])
    return folder


XNLI = (
    *(
        "language",
        "gold_label",
        "sentence1_binary_parse",
        "sentence2_binary_parse",
        "sentence1_parse",
        "sentence2_parse",
    ),
    *("sentence1", "sentence2", "promptID", "pairID", "genre", "label1", "label2", "label3", "label4", "label5"),
    *("sentence1_tokenized", "sentence2_tokenized", "match"),
)


def xnli(folder):
    told = {"en": ('He said "no', "He spoke"), "sw": ("Alisema", "Aliongea")}
    rows = []
    for language, (premise, hypothesis) in told.items():
        for label in ("entailment", "neutral"):
            row = dict.fromkeys(XNLI, "-") | {"language": language, "gold_label": label}
            rows.append(row | {"sentence1": premise, "sentence2": hypothesis})
    head = "\t".join(XNLI)
    text = "\n".join([head, *("\t".join(row.values()) for row in rows)])
    for part in ("dev", "test"):
        (folder / f"xnli.{part}.tsv").write_text(text + "\n", encoding="utf-8")
    (folder / "multinli.train.en.tsv").write_text("premise\thypo\tlabel\nIt rains .\tIt is dry .\tcontradictory\n")
    return folder


ESNLI = ("Explanation", "Sentence1_marked", "Sentence2_marked", "Sentence1_Highlighted", "Sentence2_Highlighted")


def esnli(folder):
    """Train: one annotator, in two files; dev and test: three."""
    head = ["pairID", "gold_label", "Sentence1", "Sentence2"]
    first = ["1.jpg#0r1e", "entailment", "A man, who sings, is old.", "A man makes music."]
    why = ["Singing is making music.", "A man, who *sings,* is old.", "A man *makes* *music.*", "3", "2,3"]
    more = [
        [*why[:1], "A man, who *sings,* *is* old.", "A man makes *music.*", "3,4", "3"],
        ["x", first[2], first[3], "{}", "{}"],
    ]
    cells(folder / "esnli_train_1.csv", [[*head, "WorkerId", *(f"{name}_1" for name in ESNLI)], [*first, "w", *why]])
    second = ["2.jpg#0r1n", "neutral", 'He said "so".', "He is 2 * 3."]
    other = ["Nobody knows.", 'He said "so".', "He *is* 2 * *3.*", "{}", "1,4"]
    cells(folder / "esnli_train_2.csv", [[*head, "WorkerId", *(f"{name}_1" for name in ESNLI)], [*second, "w", *other]])
    for part in ("dev", "test"):
        names = [f"{name}_{person}" for person in (1, 2, 3) for name in ESNLI]
        cells(folder / f"esnli_{part}.csv", [[*head, *names], [*first, *why, *more[0], *more[1]]])
    return folder


def hatexplain(folder):
    def people(*labels):
        return [{"label": label, "annotator_id": n, "target": ["None"]} for n, label in enumerate(labels)]

    def post(name, tokens, labels, rationales):
        return {"post_id": name, "annotators": people(*labels), "rationales": rationales, "post_tokens": tokens.split()}

    posts = [
        post(
            "1_gab",
            "you utter lid go",
            ("offensive", "hatespeech", "offensive"),
            [[0, 1, 1, 0], [0, 1, 1, 0], [1, 0, 1, 0]],
        ),
        post("2_twitter", "a fine day", ("normal", "normal", "offensive"), []),
        post("3_gab", "so what", ("normal", "hatespeech", "offensive"), [[0, 1], [1, 1]]),
    ]
    (folder / "dataset.json").write_text(json.dumps({each["post_id"]: each for each in posts}))
    names = [each["post_id"] for each in posts]
    (folder / "post_id_divisions.json").write_text(json.dumps({"train": names, "val": names[:2], "test": names[1:]}))
    return folder


def squad(folder):
    """SQuAD 2.0: questions with answers, and impossible ones with plausible answers."""
    asked = {
        "id": "1",
        "question": "which film?",
        "answers": [{"text": "town", "answer_start": 8}],
        "is_impossible": False,
    }
    plausible = [{"text": "small", "answer_start": 2}]
    impossible = {"id": "2", "question": "who?", "answers": [], "is_impossible": True, "plausible_answers": plausible}
    paragraphs = [{"context": f"a small town {n}", "qas": [asked, impossible]} for n in range(30)]
    path = folder / "dev-v2.0.json"
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return path


def mlqe(folder):
    for part in PARTS:
        head = "index\toriginal\ttranslation\tscores\tmean\tz_scores\tz_mean\tmodel_scores"
        row = "0\ta lid\tein Deckel\t[1]\t1\t[1]\t-0.5\t0"
        write_tar(folder / f"en-de-{part}.tar.gz", **{f"{part}.df.short.tsv": f"{head}\n{row}\n"})
    return folder


def wmt_qe(folder):
    """Tags of words and gaps on both tasks in train, of words alone in dev; test has neither tags nor scores."""
    for part in PARTS:
        (folder / f"{part}.src").write_text("the lid is open .\na lid\n")
        (folder / f"{part}.mt").write_text("der Deckel ist auf .\nein Deckel\n")
    for part, tags in (
        ("train", "OK BAD OK BAD OK OK OK OK BAD OK OK\nOK OK OK BAD OK\n"),
        ("dev", "BAD BAD OK OK OK\nOK BAD\n"),
    ):
        (folder / f"{part}.hter").write_text("0.4\n0.000000\n")
        (folder / f"{part}.tags").write_text(tags)
    (folder / "train.source_tags").write_text("OK BAD BAD OK OK\nOK OK\n")
    return folder


def zhang(folder):
    (folder / "classes.txt").write_text("World\nSports\n")
    rows = [["2", 'A "cup"', "Won\\by a lid, again"], ["1", "", "No title"]]
    for part in ("train", "test"):
        cells(folder / f"{part}.csv", rows, quoting=table.QUOTE_ALL)
    return folder


def text_folders(folder):
    for part in ("train", "test"):
        for label, text in (("pos", "A fine film.<br /><br />Go."), ("neg", "A bore."), ("unsup", "?")):
            base = folder / part / label
            base.mkdir(parents=True)
            (base / "0_9.txt").write_text(text, encoding="utf-8")
        (folder / part / "labeledBow.feat").write_text("9 0:1\n")
    return folder


def rotten_tomatoes(folder):
    for label, word in (("pos", "caf\xe9"), ("neg", "lid")):
        text = "".join(f"a {word} number {n} . \n" for n in range(8))
        (folder / f"rt-polarity.{label}").write_bytes(text.encode("latin-1"))
    return folder


def conll(folder):
    rows = "-DOCSTART- -X- -X- O\n\nJohn NNP B-NP B-PER\nSmith NNP I-NP I-PER\nsees VBZ B-VP O\nRome NNP B-NP B-LOC\n"
    rows += ". . O O\n\nNo DT B-NP O\nriver NN I-NP O\n\nMary NNP B-NP B-PER\nJohn NNP B-NP B-PER\n"
    for part in PARTS:
        (folder / f"{part}.txt").write_text(rows)
    return folder


def emotion(folder):
    for part in ("train", "val", "test"):
        (folder / f"{part}.txt").write_text("i feel low; very low;sadness\ni feel fine;joy\n")
    return folder


def csv(folder):
    rows = [[row["text"], row["label"], "[[2, 7]]"] for row in ROWS]
    return cells(folder / "data", [["text", "label", "rationale"], *rows])


def parquet(folder):
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "data")
    return folder / "data"


def labeled(folder):
    (folder / "data").write_text("\n".join(f"{row['label']} {row['text']}" for row in ROWS))
    return folder / "data"


def hub(folder):
    """Images in a folder for each class, as `datasets` reads them."""
    for part in ("train", "validation"):
        for shade, label in ((40, "dark"), (200, "light")):
            (folder / part / label).mkdir(parents=True)
            Image.new("L", (3, 2), shade).save(folder / part / label / "1.png")
    return folder


def label_studio(folder):
    def task(n):
        value = {"start": 2, "end": 7, "text": "small", "labels": ["evidence"]}
        result = [{"from_name": "rationale", "to_name": "text", "type": "labels", "value": value}]
        data = {"text": f"a small town {n}", "label": "good" if n % 2 else "bad"}
        return {"id": n, "data": data, "annotations": [{"completed_by": {"email": "a@b.c"}, "result": result}]}

    (folder / "data").write_text(json.dumps([task(n) for n in range(30)]))
    return folder / "data"


def study(folder):
    from expound_people.items import StudyItem
    from expound_people.projects import create_project
    from expound_people.storage import Storage

    storage = Storage(f"sqlite:///{folder}/studies.db")
    found = [
        StudyItem((f"a small town {n}",), label="good" if n % 2 else "bad", marks={"Ada": ((0, 2, 7),)})
        for n in range(30)
    ]
    with storage.write_session() as session:
        create_project(session, "towns", found, "highlight")
    storage.close()
    return folder / "studies.db"


def argilla(folder):
    from expound.data.readers.argilla import write_records
    from expound.data.readers.marked import MarkedExample

    examples = [MarkedExample((row["text"],), row["label"], {"ann": ((0, 2, 7),)}) for row in ROWS]
    (folder / "data").write_text(json.dumps(write_records(examples)))
    return folder / "data"


def hotpotqa(folder):
    def question(text, answer, *facts):
        context = [
            ["Lid", ["A lid is round.", " It is old."]],
            ["Cup", ["A cup is tall."]],
            ["Tin", ["A tin is grey."]],
        ]
        known = {"_id": text, "type": "comparison", "level": "hard"}
        return known | {"question": text, "answer": answer, "context": context, "supporting_facts": list(facts)}

    questions = [
        question("Which is old, a lid or a cup?", "a lid", ["Lid", 1], ["Lid", 0], ["Cup", 0]),
        question("What is grey?", "a tin", ["Tin", 0]),
    ]
    (folder / "hotpot_dev_distractor_v1.json").write_text(json.dumps(questions))
    return folder


def ruler(folder):
    head = "Some special magic numbers are hidden within the following text. Make sure to memorize it."
    sentences = [f"The grass is green, {{so}} it is {number}." for number in range(6)]
    sentences[3] = "One of the special magic numbers for lid is: 71."
    asked = "What is the special magic number for lid mentioned in the provided text?"
    more = {"outputs": ["71"], "length": 90, "answer_prefix": " It is"}
    documents = "\n\n".join(
        f"Document {number}:\nA {name} is {number}." for number, name in enumerate(["lid", "cup"], 1)
    )
    rows = [
        {"index": 0, "input": f"{head}\n{' '.join(sentences)}\n{asked}", **more},
        {"index": 1, "input": f"{head}\n\n{documents}\n\nQuestion: What is 2?", "outputs": ["cup"], "length": 40},
        {"index": 2, "input": f"{head}\nIt is green. It is blue.\n{asked}", **more},
    ]
    return lines(folder / "validation.jsonl", rows).parent


CORPORA = {
    "sst": sst,
    "rotten_tomatoes": rotten_tomatoes,
    "emotion": emotion,
    "conll": conll,
    "text_folders": text_folders,
    "zhang": zhang,
    "hatexplain": hatexplain,
    "eraser": movies,
    "snli": snli,
    "xnli": xnli,
    "esnli": esnli,
    "squad": squad,
    "hotpotqa": hotpotqa,
    "ruler": ruler,
    "mlqe": mlqe,
    "wmt_qe": wmt_qe,
    "csv": csv,
    "jsonl": lambda folder: lines(folder / "data", ROWS),
    "parquet": parquet,
    "labeled": labeled,
    "hub": hub,
    "label_studio": label_studio,
    "argilla": argilla,
    "study": study,
}
"""By the id of its reader a function that writes a corpus into an empty folder and gives the path to read."""
