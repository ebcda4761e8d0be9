#!/usr/bin/env python3
"""Mistreats sparsellm-serve for a while, and says what it did not survive.

    serve_soak.py SPARSELLM_SERVE SPARSELLM_RUN [--seconds N] [--connections N] [--seed N]

Clients send requests at random. Some read their answers to the end: these have to be what
sparsellm-run generates for the same request and seed. The others break off after a random byte of
the request or of the answer, read or write slowly, send bytes that are no HTTP, or hold a
connection and say nothing. A round takes up to three minutes. After each the clients leave, and
the server has to be empty: no request, no page of the KV cache; in every second one it gets SIGTERM
while they are busy. It has to exit with 0, and to print nothing that a sanitizer prints. It is meant
for programs of the presets asan and tsan.
"""

import argparse
import asyncio
import json
import pathlib
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import tempfile
import time

MODEL = pathlib.Path(__file__).resolve().parents[2] / "data/models/fable-llama-relu-8m"
PARALLEL = 32
DRAIN_SECONDS = 20
ROUND_SECONDS = 170
WORDS = "the old king had three daughters and a grey wolf came to his door at night".split()


def require(holds, what):
    if not holds:
        raise AssertionError(what)


# Requests, and what is right for them.


def random_request(rng):
    """Fields that a line of sparsellm-run --prompts and a body have in common."""
    request = {
        "prompt": " ".join(rng.choices(WORDS, k=rng.randint(1, 40))),
        "max_tokens": rng.choice([1, 2, 8, 24, 60]),
        "temperature": rng.choice([0, 0.7, 1.3]),
        "seed": rng.randrange(2**31),
        "top_p": rng.choice([1, 0.9]),
    }
    if rng.random() < 0.3:
        request["n"] = rng.randint(2, 4)
    if rng.random() < 0.3:
        request["stop"] = rng.choice([["."], ["king", "wolf"], "e "])
    if rng.random() < 0.2:
        request["repetition_penalty"] = 1.3
        request["logit_bias"] = {str(rng.randrange(1000)): 4, "5": -100}
    if rng.random() < 0.2:
        request["ignore_eos"] = True
    if rng.random() < 0.2:
        request["logprobs"] = rng.choice([0, 5, 30])
    return request


def reference_texts(program, requests):
    """For each request the texts and finish reasons of its samples."""
    with tempfile.TemporaryDirectory() as folder:
        prompts = pathlib.Path(folder, "in.jsonl")
        output = pathlib.Path(folder, "out.jsonl")
        prompts.write_text("".join(json.dumps(request) + "\n" for request in requests))
        # Without flags sparsellm-run keeps the likeliest tokens alone.
        command = [program, "-m", MODEL, "--device", "cpu", "--prompts", prompts]
        command += ["--top-k", "0", "--min-p", "0"]
        subprocess.run(command + ["--output", output, "--quiet"], check=True)
        results = [json.loads(line) for line in output.read_text().splitlines()]
    texts = []
    for result in results:
        require("error" not in result, f"sparsellm-run: {result}")
        samples = result.get("samples", [result])
        texts.append([(sample["text"], sample["finish_reason"]) for sample in samples])
    return texts


def encoded(request, rng, stream):
    body = json.dumps({**request, "stream": stream}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    if rng.random() < 0.3:
        chunks = b""
        while body:
            size = rng.randint(1, 200)
            chunks += b"%x\r\n%s\r\n" % (len(body[:size]), body[:size])
            body = body[size:]
        return head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


# What comes back.


async def read_answer(reader):
    """Status and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status = int(head.split(" ", 2)[1])
    length = re.search(r"(?im)^content-length: (\d+)", head)
    if length:
        return status, await reader.readexactly(int(length.group(1)))
    body = b""
    while True:
        size = int(await reader.readuntil(b"\r\n"), 16)
        body += (await reader.readexactly(size + 2))[:size]
        if size == 0:
            return status, body


def answered_texts(body, stream, samples):
    """As reference_texts() has them; None for an answer that ends with an error."""
    texts = [""] * samples
    reasons = [None] * samples
    if not stream:
        answers = [json.loads(body)]
    else:
        events = re.split(r"\n\n", body.decode())
        data = [event[6:] for event in events if event.startswith("data: ")]
        if not data or data[-1] != "[DONE]":
            return None
        answers = [json.loads(event) for event in data[:-1]]
    for answer in answers:
        if "error" in answer:
            return None
        for choice in answer["choices"]:
            texts[choice["index"]] += choice["text"]
            reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    return list(zip(texts, reasons))


class Clients:
    """All that happens in one round."""

    def __init__(self, port, requests, texts, seed):
        self.port = port
        self.requests = requests
        self.texts = texts
        self.rng = random.Random(seed)
        self.stopping = False  # the server may refuse from now on
        self.counts = {}
        self.wrong = []

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    async def connect(self, **options):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **options)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return reader, writer

    def leave(self, writer):
        """With a reset, or in good order."""
        if self.rng.random() < 0.5 and not writer.is_closing():  # by the server
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort() if self.rng.random() < 0.5 else writer.close()

    async def undisturbed(self):
        index = self.rng.randrange(len(self.requests))
        stream = self.rng.random() < 0.6
        reader, writer = await self.connect()
        try:
            for _ in range(self.rng.randint(1, 3)):
                writer.write(encoded(self.requests[index], self.rng, stream))
                status, body = await asyncio.wait_for(read_answer(reader), 240)
                if status == 503:
                    self.count("refused")
                    require(self.stopping or b"wait" in body or b"queue" in body, f"503: {body}")
                    return
                require(status == 200, f"status {status}: {body[:300]}")
                texts = answered_texts(body, stream, len(self.texts[index]))
                if texts is None:
                    require(self.stopping, f"an error ends {body[-300:]}")
                    self.count("ended by an error")
                    return
                require(
                    texts == self.texts[index],
                    f"{self.requests[index]}: {texts} instead of {self.texts[index]}",
                )
                self.count("whole")
                if self.stopping:
                    return
        finally:
            self.leave(writer)

    async def breaks_off(self):
        request = self.rng.choice(self.requests)
        data = encoded(request, self.rng, self.rng.random() < 0.7)
        reader, writer = await self.connect()
        if self.rng.random() < 0.4:
            writer.write(data[: self.rng.randrange(len(data))])
            await asyncio.sleep(self.rng.random() * 0.1)
            self.count("broken off in the request")
        else:
            writer.write(data)
            if self.rng.random() < 0.3:
                writer.write(data * self.rng.randint(1, 60))  # further requests, sent ahead
            for _ in range(self.rng.randint(0, 6)):
                await asyncio.wait_for(reader.read(self.rng.randint(1, 400)), 240)
            self.count("broken off in the answer")
        self.leave(writer)

    async def half_closes(self):
        _, writer = await self.connect()
        writer.write(encoded(self.rng.choice(self.requests), self.rng, self.rng.random() < 0.5))
        writer.write_eof()
        await asyncio.sleep(self.rng.random())
        self.count("half-closed")
        self.leave(writer)

    async def reads_slowly(self):
        reader, writer = await self.connect(limit=64)
        writer.write(encoded(self.rng.choice(self.requests), self.rng, True))
        for _ in range(self.rng.randint(5, 60)):
            if not await asyncio.wait_for(reader.read(self.rng.randint(1, 8)), 240):
                break
            await asyncio.sleep(0.05)
        self.count("read slowly")
        self.leave(writer)

    async def writes_slowly(self):
        data = encoded(self.rng.choice(self.requests), self.rng, True)
        reader, writer = await self.connect()
        for _ in range(self.rng.randint(1, 80)):
            size = self.rng.randint(1, 12)
            writer.write(data[:size])
            data = data[size:]
            await asyncio.sleep(0.03)
        writer.write(data)
        if self.rng.random() < 0.5:
            await asyncio.wait_for(reader.read(100), 240)
        self.count("written slowly")
        self.leave(writer)

    async def sends_anything(self):
        reader, writer = await self.connect()
        data = bytearray(encoded(self.rng.choice(self.requests), self.rng, True))
        for _ in range(self.rng.randint(1, 20)):
            data[self.rng.randrange(len(data))] = self.rng.randrange(256)
        writer.write(data if self.rng.random() < 0.7 else self.rng.randbytes(3000))
        try:
            await asyncio.wait_for(reader.read(100), self.rng.random() * 2)
        except asyncio.TimeoutError:
            pass
        self.count("damaged")
        self.leave(writer)

    async def says_nothing(self):
        reader, writer = await self.connect()
        try:
            await asyncio.wait_for(reader.read(100), self.rng.random() * 20)
        except asyncio.TimeoutError:
            pass
        self.count("silent")
        self.leave(writer)

    async def client(self, kinds, until):
        while time.monotonic() < until and not self.stopping:
            try:
                await self.rng.choice(kinds)()
            except AssertionError as error:
                self.wrong.append(str(error))
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
                if not self.stopping and kinds == [self.undisturbed]:
                    self.wrong.append(f"an undisturbed client: {error!r}")
            await asyncio.sleep(self.rng.random() * 0.2)


async def get(port, target):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    _, body = await asyncio.wait_for(read_answer(reader), 60)
    writer.close()
    return body.decode()


async def require_empty(port):
    """Soon after all clients have left."""
    gauges = {}
    for _ in range(100):
        await asyncio.sleep(0.2)
        text = await get(port, "/metrics")
        gauges = {
            name: float(re.search(rf"(?m)^{name}(?:\{{.*\}})? (\S+)$", text).group(1))
            for name in (
                "vllm:num_requests_running",
                "vllm:num_requests_waiting",
                "vllm:kv_cache_usage_perc",
            )
        }
        if not any(gauges.values()):
            return
    raise AssertionError(f"the server is not empty: {gauges}")


async def run_round(port, requests, texts, seed, args, seconds, terminate):
    clients = Clients(port, requests, texts, seed)
    until = time.monotonic() + seconds
    rude = [
        clients.breaks_off,
        clients.half_closes,
        clients.reads_slowly,
        clients.writes_slowly,
        clients.sends_anything,
    ]
    busy = max(2, args.connections // 100)
    tasks = [clients.client([clients.undisturbed], until) for _ in range(busy)]
    tasks += [clients.client(rude, until) for _ in range(2 * busy)]
    tasks += [clients.client([clients.says_nothing], until) for _ in range(args.connections - 3 * busy)]
    running = [asyncio.create_task(task) for task in tasks]
    if terminate:
        await asyncio.sleep(seconds / 2)
        clients.stopping = True
        terminate()
    await asyncio.gather(*running)
    if not terminate:
        await require_empty(port)
    return clients


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("serve")
    parser.add_argument("run")
    parser.add_argument("--seconds", type=int, default=1800)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    files = args.connections + 200
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, most), most))

    rng = random.Random(args.seed)
    requests = [random_request(rng) for _ in range(60)]
    texts = reference_texts(args.run, requests)
    end = time.monotonic() + args.seconds
    number = 0
    while time.monotonic() < end:
        log = tempfile.TemporaryFile("w+")
        command = [args.serve, "-m", MODEL, "--device", "cpu", "--port", "0"]
        command += ["--parallel", str(PARALLEL), "--drain-seconds", str(DRAIN_SECONDS)]
        server = subprocess.Popen(command, stderr=log, text=True)

        def said():
            log.seek(0)
            return log.read()

        while not (address := re.search(r"is served at http://127.0.0.1:(\d+)", said())):
            require(server.poll() is None, f"the server did not start: {said()}")
            time.sleep(0.1)
        seconds = min(ROUND_SECONDS, max(5, end - time.monotonic()))
        number += 1

        def stop():
            server.send_signal(signal.SIGTERM)

        try:
            clients = asyncio.run(
                run_round(int(address.group(1)), requests, texts, args.seed + number, args, seconds,
                          stop if number % 2 == 0 else None)
            )
            if number % 2 == 1:
                stop()
            status = server.wait(DRAIN_SECONDS + 30)
        finally:
            server.kill()
        wrong = clients.wrong
        if status != 0:
            wrong.append(f"exit code {status}")
        if "Sanitizer" in said():
            wrong.append(said())
        print(f"round {number}, {seconds:.0f} s: {clients.counts}", flush=True)
        require(not wrong, f"{len(wrong)} errors, such as: {''.join(wrong[:1])[:4000]}")
        require(clients.counts.get("whole", 0) > 0, "no client got its answer")


if __name__ == "__main__":
    main()
