"""A tiny GPT2 or Llama learns with transformers' Trainer, and writes some tokens with generate().

usage: trainer.py gpt2|llama STEPS clean|keeps

Marks are set before the training, behind each step and behind generate(). With `keeps` the loss of every step stays in a list, as in
programs that mean to print a mean later; what is kept is printed. Most operators compute nothing here, so losses and what is
written are accidents.
"""
import sys

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import truth

kind, steps, keeps = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "keeps"
VOCABULARY, LENGTH, BATCH = 256, 32, 4
kept = []


def tiny():
    if kind == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY, n_positions=256, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1
            )
        )
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
        )
    )


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return BATCH * steps

    def __getitem__(self, index):
        tokens = torch.arange(index, index + LENGTH) % VOCABULARY
        return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}


class Marks(TrainerCallback):
    def on_step_end(self, arguments, state, control, **_):
        truth.mark(f"step {state.global_step}")


class Losses(Trainer):
    def compute_loss(self, *arguments, **options):
        loss = super().compute_loss(*arguments, **options)
        if keeps:
            kept.append(loss.detach().clone())  # the leak
        return loss


truth.start()
torch.manual_seed(0)
model = tiny()
arguments = TrainingArguments(
    output_dir=truth.FOLDER,
    max_steps=steps,
    per_device_train_batch_size=BATCH,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
trainer = Losses(model=model, args=arguments, train_dataset=Rows(), callbacks=[Marks()])
print("device", arguments.device, flush=True)
truth.mark("model")
trainer.train()
truth.mark("trained")
model.eval()
# Tokens are an accident here: their number ends the text, none of them does.
model.generation_config.eos_token_id = None
with torch.no_grad():
    prompt = torch.arange(2, 10)[None].to("npu")
    written = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False)
truth.mark("generated")
print("generated", *written.shape, written.device, flush=True)
print("kept", len(kept), sum(loss.numel() * loss.element_size() for loss in kept), flush=True)
truth.finish()
