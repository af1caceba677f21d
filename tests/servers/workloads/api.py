"""vLLM's server, with its engine in a process of its own and a worker for each rank. It is asked by HTTP, as its users do.

usage: api.py RANKS [waits]

Marks of each worker: start, ready, generated, end (`books.py`). With `waits` it writes the server's number to TRUTH's `server` and waits for a
file `go` beside it before the first request, then takes a mark `attached`. The server ends by SIGTERM.
"""
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from offline import PROMPT, SHAPE, TOKENS, write_model

ranks = int(sys.argv[1])
waits = sys.argv[2:] == ["waits"]
REQUESTS = 4
# Seconds that it may take to start, and to answer.
PATIENCE = 600


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def ask(port, path, question=None):
    data = None if question is None else json.dumps(question).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.loads(answer.read() or b"null")


def wait_until_healthy(server, port):
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE:
        if server.poll() is not None:
            sys.exit(f"the server has ended: {server.returncode}")
        try:
            return ask(port, "health")
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    sys.exit("the server does not answer")


def start(folder, port):
    words = f"""-m vllm.entrypoints.openai.api_server --host 127.0.0.1 --port {port} --load-format dummy --enforce-eager
        --max-model-len 256 --max-num-seqs 8 --block-size 128 --gpu-memory-utilization 0.5 --seed 0
        --tensor-parallel-size {ranks} --worker-extension-cls books.Books --served-model-name tiny""".split()
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.pathsep.join([os.environ["PYTHONPATH"], here])
    # In this mode the server passes calls on to its workers.
    own = {"PYTHONPATH": path, "VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    return subprocess.Popen([sys.executable, *words, "--model", folder], env={**os.environ, **own})


def wait_for_tracer(server):
    with open(os.path.join(os.environ["TRUTH"], "server"), "w", encoding="ascii") as file:
        file.write(str(server.pid))
    print("waiting", flush=True)
    while not os.path.exists(os.path.join(os.environ["TRUTH"], "go")):
        time.sleep(0.02)


def main():
    folder = os.path.join(os.environ["TRUTH"], "model")
    write_model(folder)
    port = free_port()
    server = start(folder, port)
    wait_until_healthy(server, port)
    ask(port, "collective_rpc", {"method": "take_mark", "args": ["ready"]})
    blocks = ask(port, "collective_rpc", {"method": "count_blocks"})["results"]
    for what, of_ranks in zip(("kv_cache", "weights"), zip(*blocks)):
        print(what, *of_ranks[0], flush=True)
    if waits:
        wait_for_tracer(server)
        ask(port, "collective_rpc", {"method": "take_mark", "args": ["attached"]})
    for number in range(REQUESTS):
        prompt = [2 + (number + at) % (SHAPE["vocab_size"] - 6) for at in range(PROMPT)]
        question = {"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        print("tokens", ask(port, "v1/completions", question)["usage"]["completion_tokens"], flush=True)
    ask(port, "collective_rpc", {"method": "take_mark", "args": ["generated"]})
    ask(port, "collective_rpc", {"method": "finish_books"})
    server.send_signal(signal.SIGTERM)
    print("ended", server.wait(), flush=True)


if __name__ == "__main__":
    main()
