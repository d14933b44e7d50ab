"""A small HTTP server of a local model by OpenAI's protocol for completions, which can be told to fail."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch


class Served:
    """An HTTP server of a model by OpenAI's protocol for completions.

    `forms`: the ways in which it returns log-probabilities of prompts. `faults`: the faults of the first requests, in
    their order; later requests are answered. It counts requests, answers to each prompt, and requests at a time.
    """

    def __init__(self, model, forms=("max_tokens 0",), faults=(), delay=0.0, spell=None):
        self.model, self.tokenizer, self.forms, self.delay = model.model, model.tokenizer, forms, delay
        self.spell = spell or (lambda token: self.tokenizer.decode([token]))
        self.faults = list(faults)
        self.requests, self.answered = [], Counter()
        self.active = self.most_active = 0
        self.lock = threading.Lock()

    def reply(self, request):
        """Return status and answer."""
        extra = set(request) - {"model", "prompt", "max_tokens", "temperature", "top_p", "seed"}
        if extra == {"prompt_logprobs"} and "prompt_logprobs" in self.forms:
            return 200, self.choose(prompt_logprobs=self.vllm_entries(request["prompt"]), text="x")
        if extra == {"echo", "logprobs"} and f"max_tokens {request['max_tokens']}" in self.forms:
            return 200, self.choose(logprobs=self.echo(request["prompt"], request["max_tokens"]), text="x")
        if "ignores echo" in self.forms and extra != {"return_token_ids"}:
            generated = {"tokens": ["."], "token_logprobs": [-0.5]}
            return 200, self.choose(logprobs=generated, text=".")
        if "other text" in self.forms and extra == {"echo", "logprobs"}:
            other = [(token + 1) % len(self.tokenizer) for token in request["prompt"]]
            return 200, self.choose(logprobs=self.echo(other, 0), text="x")
        if extra <= {"return_token_ids"}:
            return self.generate(request, names_ids="return_token_ids" in extra)
        return 400, {"error": {"message": "max_tokens must be at least 1"}}

    @staticmethod
    def choose(**choice):
        return {"object": "text_completion", "choices": [{"index": 0, "finish_reason": "length", **choice}]}

    @torch.no_grad()
    def log_probs(self, ids):
        return self.model(torch.tensor([ids])).logits[0].log_softmax(-1)

    def echo(self, ids, generated):
        table = self.log_probs(ids)
        values = [None, *(float(table[place, token]) for place, token in enumerate(ids[1:]))]
        new = [int(table[-1].argmax())] * generated
        shown = [self.spell(token) for token in [*ids, *new]]
        return {"tokens": shown, "token_logprobs": [*values, *[float(table[-1].max())] * generated]}

    def vllm_entries(self, ids):
        table = self.log_probs(ids)
        entries = [None]
        for place, token in enumerate(ids[1:]):
            best = int(table[place].argmax())
            entries.append({str(each): {"logprob": float(table[place, each])} for each in {token, best}})
        return entries

    @torch.no_grad()
    def generate(self, request, names_ids):
        if names_ids and "token ids" not in self.forms:
            return 400, {"error": {"message": "unknown option return_token_ids"}}
        ids = torch.tensor([request["prompt"]])
        whole = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=request["max_tokens"],
                                    do_sample=False, pad_token_id=0)  # fmt: skip
        new = whole[0, ids.shape[1] :].tolist()
        ended = new[-1] == self.tokenizer.eos_token_id
        answer = {
            "text": self.tokenizer.decode(new, skip_special_tokens=True),
            "finish_reason": "stop" if ended else "length",
        }
        return 200, self.choose(**answer, **({"token_ids": new} if names_ids else {}))

    def handle(self, handler):
        length = int(handler.headers["Content-Length"])
        request = json.loads(handler.rfile.read(length))
        with self.lock:
            self.requests.append(request | {"key": handler.headers.get("Authorization"), "path": handler.path})
            fault = self.faults.pop(0) if self.faults else None
            self.active += 1
            self.most_active = max(self.active, self.most_active)
        time.sleep(self.delay)
        self.answer(handler, request, fault)

    def answer(self, handler, request, fault):
        with self.lock:
            status, answer = self.reply(request)
        headers = {}
        if isinstance(fault, tuple):
            status, answer, headers = fault[0], {"error": "busy"}, fault[1]
        elif isinstance(fault, int):
            status, answer = fault, {"error": "busy"}
        elif fault == "timeout":
            time.sleep(1.5)
        elif fault == "half of the numbers":
            numbers = answer["choices"][0]["logprobs"]
            for name in numbers:
                numbers[name] = numbers[name][: len(numbers[name]) // 2]
        elif fault == "no choices":
            answer = {"object": "text_completion"}
        body = json.dumps(answer).encode()
        size = len(body)
        if fault == "half of the JSON":
            body = body[: size // 2]
            size = len(body)
        elif fault == "half of the bytes":
            body = body[: size // 2]
        with self.lock:
            # Counted before the client hears of it, and may send its next request.
            self.active -= 1
            self.answered[tuple(request["prompt"])] += status == 200 and fault is None
        handler.send_response(status)
        for name, value in ({"Content-Length": str(size)} | headers).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)


@contextmanager
def serve(model, **options):
    served = Served(model, **options)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            served.handle(self)

        def handle(self):
            # The client has given up.
            with suppress(ConnectionError):
                super().handle()

        def log_message(self, *_):
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    served.address = f"http://127.0.0.1:{web.server_port}/v1"
    try:
        yield served
    finally:
        web.shutdown()
        thread.join()
        web.server_close()
