"""vLLM in this process, with a tiny Qwen2 that it makes up the weights of. It writes 8 tokens for each of 4 prompts.

usage: offline.py eager|graphs|sleep|asleep|wakes|serves|keeps|waits

Marks: start, ready (the model and the KV cache are there), generated, with `sleep` asleep and awake, with `asleep` the first alone, with
`wakes` both, behind a tracer that it waits for.
With `serves` it takes one request after the other until it has served three times as long as it took to start; `keeps` does the
same, and its engine keeps a copy of the hidden states of each step. With `waits` it looks paths up (`lookups.py`).
"""
import json
import os
import sys
import time

from blocks import blocks_of, flat, weights_of

BEGAN = time.monotonic()

kind = sys.argv[1]
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
# The layout of weights that NPUs like needs operators that are not computed.
os.environ["VLLM_ASCEND_ENABLE_NZ"] = "0"
PROMPTS, PROMPT, TOKENS = 4, 32, 8
# Seconds that it serves at least, and waits after each request.
SERVES, PAUSE = 30, 0.2
SHAPE = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "use_sliding_window": False,
}


def write_model(folder):
    """What vLLM reads of a model, but for its weights: a configuration and a tokenizer that has a token for each byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    os.makedirs(folder)
    texts = sorted(pre_tokenizers.ByteLevel.alphabet())[: SHAPE["vocab_size"] - 2]
    vocabulary = {text: number for number, text in enumerate(["<s>", "</s>", *texts])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "model_max_length": 512}
    for name, contents in (("config", SHAPE), ("tokenizer_config", names)):
        with open(os.path.join(folder, f"{name}.json"), "w", encoding="ascii") as file:
            json.dump(contents, file)


def keep_outputs(runner):
    """The leak: what was computed in each step stays, by its number."""
    runner.kept = {}
    compute_logits = runner.model.compute_logits

    def keep_and_compute(hidden_states, *others):
        runner.kept[len(runner.kept)] = hidden_states.clone()  # the leak
        return compute_logits(hidden_states, *others)

    runner.model.compute_logits = keep_and_compute


def serve(generate, started):
    """One request after the other; gives how many."""
    requests = 0
    while time.monotonic() - started < max(SERVES, 3 * (started - BEGAN)):
        written = generate([{"prompt_token_ids": [2 + (requests + at) % 250 for at in range(PROMPT)]}])
        assert len(written[0].outputs[0].token_ids) == TOKENS
        requests += 1
        time.sleep(PAUSE)
    return requests


def main():
    # It sets torch_npu's allocator up, so it comes before the account.
    from vllm import LLM, SamplingParams

    import truth

    truth.start()
    folder = os.path.join(truth.FOLDER, "model")
    write_model(folder)
    server = LLM(
        model=folder,
        load_format="dummy",
        enforce_eager=kind != "graphs",
        enable_sleep_mode=kind in ("sleep", "asleep", "wakes"),
        max_model_len=256,
        max_num_seqs=8,
        block_size=128,
        gpu_memory_utilization=0.5,
        seed=0,
    )
    truth.mark("ready")
    runner = server.llm_engine.model_executor.driver_worker.worker.model_runner
    print("kv_cache", *blocks_of(flat(runner.kv_caches)), flush=True)
    print("weights", *blocks_of(weights_of(runner)), flush=True)
    prompts = [{"prompt_token_ids": list(range(2, 2 + PROMPT))} for _ in range(PROMPTS)]
    sampling = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    if kind == "keeps":
        keep_outputs(runner)
    written = server.generate(prompts, sampling)
    truth.mark("generated")
    print("tokens", *[len(one.outputs[0].token_ids) for one in written], flush=True)
    if kind == "waits":
        global engine
        engine = server
        import lookups

        lookups.waits()
    if kind in ("serves", "keeps"):
        print("requests", serve(lambda asked: server.generate(asked, sampling, use_tqdm=False), time.monotonic()), flush=True)
        kept = getattr(runner, "kept", {}).values()
        print("kept", *blocks_of(kept), flush=True)
    if kind in ("sleep", "asleep", "wakes"):
        from vllm_ascend.device_allocator.camem import CaMemAllocator

        own = CaMemAllocator.get_instance()
        print("own pool", len(own.pointer_to_data), own.get_current_usage(), flush=True)
        if kind == "wakes":
            truth.wait_for_tracer()
        server.sleep(level=1)
        truth.mark("asleep")
        if kind != "asleep":
            server.wake_up()
            truth.mark("awake")
    truth.finish()


if __name__ == "__main__":
    main()
