"""Fifty programs (ten in `make test`) ask the API at once, and some leave: each gets its own answers."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
import torch

import expound
from attacked import LONG, record_outcomes
from chats import chatting

CLIENTS = 50 if LONG else 10
SECONDS = 40 if LONG else 2

REQUESTS = 20_000
API_TOKEN = "the-api-token-of-the-attack-0123456789"
DOCUMENTS = {"town": "a moving film about a small town", "packages": "two women are holding packages ."}
QUESTIONS = [f"{word} film about {n} towns" for n in range(8) for word in ("a", "dull", "moving", "small")]
MAX_TOKENS = 12
GROWTH = 1.02
"""The memory at the end, at most, relative to that after the first half of the time."""


def start_server(folder, port_file):
    """Starts a server; returns its process and the address of its API."""
    command = [
        sys.executable,
        "-m",
        "expound",
        "serve",
        "--api",
        "--model",
        str(folder),
        "--port",
        "0",
        "--threads",
        "1",
    ]
    log = port_file.open("w")
    environment = os.environ | {"EXPOUND_API_TOKEN": API_TOKEN}
    server = subprocess.Popen(command, env=environment, stderr=log, stdout=log, cwd=folder)
    # Minutes on a machine that is busy with other work.
    for _ in range(6000):
        found = re.search(r"API: (\S+)", port_file.read_text())
        if found and "open:" in port_file.read_text():
            return server, found[1]
        assert server.poll() is None, port_file.read_text()
        time.sleep(0.05)
    server.kill()
    raise AssertionError("the server does not start")


def resident_memory(server):
    """The server's memory in MiB."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def compute_answers(model):
    """The answer to each question, with the scores of its citations."""
    answers = {}
    for question in QUESTIONS:
        message = {"role": "user", "content": f"{{sources}}\n\n{question}"}
        (row,) = model.respond([{"messages": [message], "sources": DOCUMENTS}], MAX_TOKENS)
        item = expound.attribute(model, [row], "occlusion", "sentences", unit="source")[0]
        scores = [score for citation in item.citations() for _, score in citation.sources]
        answers[question] = item.response, scores
    return answers


def run_client(address, number, end, answers):
    """Asks questions as one client until `end`, and counts the outcomes."""
    chance, outcomes = random.Random(number), Counter()
    documents = [{"title": name, "text": text} for name, text in DOCUMENTS.items()]
    with openai.OpenAI(base_url=address, api_key=API_TOKEN, max_retries=0, timeout=60) as client:
        # On a slow machine, a client may have left its only answer so far.
        while time.monotonic() < end or not outcomes["whole"] + outcomes["stream"]:
            question, kind = chance.choice(QUESTIONS), chance.choice(("whole", "whole", "stream", "stream", "left"))
            stream = kind != "whole"
            answer = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": question}], max_tokens=MAX_TOKENS, stream=stream,
                extra_body={"documents": documents},
            )  # fmt: skip
            if kind == "left":
                next(answer)
                answer.close()
            else:
                text, scores = read_stream(answer) if stream else read_whole(answer)
                expected_text, expected = answers[question]
                assert text == expected_text
                torch.testing.assert_close(torch.tensor(scores), torch.tensor(expected), atol=1e-5, rtol=0)
            outcomes[kind] += 1
    return outcomes


def read_whole(answer):
    message = answer.choices[0].message
    return message.content, [each.score for each in message.annotations]


def read_stream(answer):
    text, scores = "", None
    for chunk in answer:
        delta = chunk.choices[0].delta
        text += delta.content or ""
        if getattr(delta, "annotations", None) is not None:
            scores = [each["score"] for each in delta.annotations]
    return text, scores


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat") / "tiny"
    made = chatting(dtype=torch.float32)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.skipif(not LONG, reason="in make attack; sixteen clients ask in tests/serve/test_api.py")
def test_many_programs_at_once_get_their_own_answers(chat_folder, tmp_path):
    answers = compute_answers(expound.load(chat_folder, task="generation"))
    assert len({(text, *scores) for text, scores in answers.values()}) == len(QUESTIONS)
    server, address = start_server(chat_folder, tmp_path / "log")
    try:
        with record_outcomes("fifty programs at once", "the API") as counts, ThreadPoolExecutor(CLIENTS) as crowd:
            end, memory = time.monotonic() + SECONDS, []
            clients = [crowd.submit(run_client, address, number, end, answers) for number in range(CLIENTS)]
            while time.monotonic() < end:
                time.sleep(SECONDS / 12)
                memory.append(round(resident_memory(server)))
            outcomes = [client.result() for client in clients]
            counts.update(sum(outcomes, Counter()))
            counts["cases"] = counts.total()
        assert all(each["whole"] + each["stream"] for each in outcomes)
        assert memory[-1] < GROWTH * memory[len(memory) // 2], memory
        server.send_signal(signal.SIGINT)
        assert server.wait(30) in (0, 130, -signal.SIGINT)
    finally:
        server.kill()


def ask_briefly(client, number):
    """Asks for an answer of one token; every fiftieth request has documents, whose citations are computed."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": f"question {number}"}], "max_tokens": 1}
    if number % 50 == 0:
        body["documents"] = [{"name": name, "text": f"{text} {number}"} for name, text in DOCUMENTS.items()]
    if number % 10 == 0:
        body["stream"] = True
    client.post("chat/completions", json=body).raise_for_status()


@pytest.mark.skipif(not LONG, reason="takes minutes")
def test_memory_does_not_grow_over_many_requests(chat_folder, tmp_path):
    server, address = start_server(chat_folder, tmp_path / "log")
    memory, headers = [], {"authorization": f"Bearer {API_TOKEN}"}
    try:
        with (
            record_outcomes("memory of many requests", "the API") as counts,
            httpx.Client(base_url=f"{address}/", headers=headers, timeout=60) as client,
        ):
            for number in range(REQUESTS):
                if number % (REQUESTS // 10) == 0:
                    memory.append(resident_memory(server))
                ask_briefly(client, number)
            memory.append(resident_memory(server))
            # The first tenth fills caches and pools.
            assert memory[-1] < GROWTH * memory[1], memory
            counts |= {"cases": REQUESTS, "MiB more at the end than after a tenth": round(memory[-1] - memory[1])}
    finally:
        server.kill()
