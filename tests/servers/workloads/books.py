"""What a worker of vLLM's knows of its memory: `--worker-extension-cls books.Books` gives it marks, which the server can be asked for.

Each worker has its own account from its first use of the device on, in a folder `rank N` of TRUTH's.
"""
import os

from vllm_ascend.worker.worker import NPUWorker

init_device = NPUWorker.init_device


def begin_and_init_device(worker):
    os.environ["TRUTH"] = os.path.join(os.environ["TRUTH"], f"rank {worker.rank}")
    os.makedirs(os.environ["TRUTH"])
    import truth

    truth.start(worker.local_rank)
    return init_device(worker)


NPUWorker.init_device = begin_and_init_device


class Books:
    """Methods that `/collective_rpc` calls in every worker."""

    def take_mark(self, name):
        import truth

        truth.mark(name)

    def count_blocks(self):
        """Blocks of the KV cache and of the weights, with their bytes."""
        from blocks import blocks_of, flat, weights_of

        return [blocks_of(flat(self.model_runner.kv_caches)), blocks_of(weights_of(self.model_runner))]

    def finish_books(self):
        import truth

        truth.finish()
