"""A small random qwen4_exp model generates greedily in Transformers twice: in process, and with its PLE layer's forward
replaced by calls to a Pleiad server (prefill in cuttings, decode, a prefix moved by Snapshot into a second sequence).

Reports the first token that differs, if any, and the gap of the logits there; holds the median relative error of the
logits to a bound. --break serves a checkpoint with another value projection: the script must then exit with 1.
Needs torch and transformers.
"""
import copy
import os
import statistics
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch

from pleiad_client import Client, Report, Server, arguments, from_bf16
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

# Medians over tokens: one expert chosen otherwise changes a single token by far more than any rounding.
BOUNDS = {torch.float32: 1e-2, torch.bfloat16: 1e-1}
NAMES = {torch.float32: "FP32", torch.bfloat16: "BF16"}
CUTS = (7, 1, 30, 2, 1)


def make_config():
    config = Qwen4ExpTextConfig(
        vocab_size=4096, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        hidden_act="silu", max_position_embeddings=2048, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
        layer_types=["linear_attention"] * 3 + ["qwen_sparse_attention"], linear_conv_kernel_dim=4,
        linear_key_head_dim=32, linear_value_head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4,
        moe_intermediate_size=64, shared_expert_intermediate_size=64, num_experts_per_tok=2, num_experts=8,
        bos_token_id=1, eos_token_id=3, pad_token_id=0, hc_count=4, hc_lowrank=32, ple_layer_ids=[2], ple_embed_dim=256,
        ple_conv_kernel_size=4, ngram_size=3, heads_per_ngram=8, ngram_vocab_size_base=5003, split_ngram_parts=8,
        indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=32, indexer_budget=512, indexer_compress_ratio=4)
    config._experts_implementation = "eager"
    return config


def make_model(seed):
    """The model in BF16 on the GPU, with weights under which the PLE layer counts for much."""
    torch.manual_seed(seed)
    model = Qwen4ExpForCausalLM(make_config()).eval()
    model.requires_grad_(False)
    for name, weight in model.named_parameters():
        if "A_log" in name or "dt_bias" in name or "linear_attn.norm" in name:
            continue
        if "embed_tokens" in name or "ngram_embedding" in name:
            weight.normal_()
        elif weight.dim() == 1:
            weight.normal_(std=0.2)
        elif "conv1d" in name:
            weight.normal_(std=0.5)
        else:
            weight.normal_(std=weight.shape[-1] ** -0.5 * (3 if "lm_head" in name else 1))
    return model.to(torch.bfloat16).cuda()


class RemotePle(torch.nn.Module):
    """In the place of the library's PLE layer; its state lives in a sequence of the server."""

    def __init__(self, client, stream):
        super().__init__()
        self.client, self.stream = client, stream
        self.sequence, self.position, self.steps = None, 0, 0

    def start(self, sequence, position):
        self.sequence, self.position = sequence, position

    def forward(self, hidden_states, input_ids, past_key_values, conv_mask=None):
        if hidden_states.shape[0] != 1 or conv_mask is not None and not bool(conv_mask.bool().all()):
            raise RuntimeError("one sequence without padding is what this client sends")
        states = hidden_states[0].detach().contiguous().cpu()
        if states.dtype == torch.bfloat16:
            highway = states.view(torch.int16).numpy().view(np.uint16)
        else:
            highway = states.numpy()
        tokens = input_ids[0].tolist()
        pending, start = [], 0
        while start < len(tokens):
            length = min(CUTS[len(pending) % len(CUTS)], len(tokens) - start)
            span = slice(start, start + length)
            pending.append(self.stream.send([(self.sequence, length, self.position + start, False)], tokens[span],
                                            highway[span], delta=True, output_bf16=False))
            start += length
        added = np.concatenate([self.stream.result(request_id) for request_id in pending])
        self.position += len(tokens)
        self.steps += len(pending)
        return torch.from_numpy(added).to(hidden_states.device, hidden_states.dtype)[None]


def decode(model, token, cache, count, forced=None):
    """`count` greedy tokens after `token`; with `forced` those are fed instead. (tokens, logits [count, vocab])."""
    tokens, logits = [], []
    for i in range(count):
        output = model(input_ids=torch.tensor([[token]], device="cuda"), past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logits.append(output.logits[0, -1].float())
        tokens.append(int(logits[-1].argmax()))
        token = forced[i] if forced is not None else tokens[-1]
    return tokens, torch.stack(logits)


def prefill(model, prompt):
    output = model(input_ids=torch.tensor([prompt], device="cuda"), use_cache=True)
    return output.logits[0, -1].float(), output.past_key_values


def generate(model, prompt, count, forced=None):
    """`count` greedy tokens after the prompt and the logits each was taken from."""
    first, cache = prefill(model, prompt)
    token = forced[0] if forced is not None else int(first.argmax())
    tokens, logits = decode(model, token, cache, count - 1, forced[1:] if forced is not None else None)
    return [int(first.argmax())] + tokens, torch.cat([first[None], logits])


def compare(report, model, remote, client, prompt, count, dtype):
    layer = model.model.layers[client.layer]
    own = layer.ple
    tokens, logits = generate(model, prompt, count)
    layer.ple = remote
    try:
        remote.start(client.open(), 0)
        theirs, remote_logits = generate(model, prompt, count)
        differing = next((i for i in range(count) if tokens[i] != theirs[i]), None)
        if differing is not None:  # from there on the inputs differ: judge along the tokens of the first run
            a, b = tokens[differing], theirs[differing]
            gap = (logits[differing][a] - logits[differing][b]).item()
            report.line(f"  {NAMES[dtype]}: first differing token at {differing} of {count}: {a} in process, {b} with Pleiad; "
                        f"logit gap {gap:.4f}, logits' deviation {logits[differing].std().item():.3f}")
            client.release(remote.sequence)
            remote.start(client.open(), 0)
            _, remote_logits = generate(model, prompt, count, forced=tokens)
        else:
            report.line(f"  {NAMES[dtype]}: all {count} tokens are the same")
        if not remote.steps:
            raise RuntimeError("the model never called the layer that was put in")
        errors = ((remote_logits - logits).norm(dim=1) / logits.norm(dim=1)).tolist()
        median = statistics.median(errors) if all(error == error for error in errors) else float("nan")
        report.figures[NAMES[dtype]] = {"tokens": count, "first_differing": differing, "median_logit_error": median,
                                        "largest_logit_error": max(errors)}
        if differing is not None:
            report.figures[NAMES[dtype]]["gap"] = gap
        report.check(median <= BOUNDS[dtype], f"{NAMES[dtype]}: relative error of the logits over {count} tokens: median {median:.1e} "
                     f"(bound {BOUNDS[dtype]:.0e}), largest {max(errors):.1e}")
        client.release(remote.sequence)
        moved_prefix(report, model, remote, client, prompt, dtype)
    finally:
        layer.ple = own


def moved_prefix(report, model, remote, client, prompt, dtype):
    """The prefix's carry goes by Snapshot into a second sequence, its KV cache by copy; both must go on alike."""
    first = client.open()
    remote.start(first, 0)
    logits, cache = prefill(model, prompt)
    blob, other_cache = client.snapshot(first), copy.deepcopy(cache)
    token = int(logits.argmax())
    tokens, one = decode(model, token, cache, 64)
    second = client.open(blob)
    remote.start(second, len(prompt))
    others, two = decode(model, token, other_cache, 64)
    same = next((i for i in range(64) if tokens[i] != others[i]), 64)
    report.check(same == 64, f"{NAMES[dtype]}: a prefix of {len(prompt)} tokens restored into a second sequence: {same} of 64 tokens "
                 f"agree, logits differ by at most {(one - two).abs().max().item():.1e}")
    client.release(first)
    client.release(second)


def break_value_projection(model):
    """A copy of the model whose PLE layer has a value projection a quarter too large."""
    broken = copy.deepcopy(model)
    broken.model.layers[1].ple.value_proj.weight.mul_(1.25)
    return broken


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--break", dest="break_weight", action="store_true", help="serve another value projection")
    args = parser.parse_args()
    report = Report(args)
    with torch.no_grad(), tempfile.TemporaryDirectory(prefix="pleiad-model-") as folder:
        model = make_model(args.seed)
        served = break_value_projection(model) if args.break_weight else model
        served.save_pretrained(folder, max_shard_size="1MB")
        prompt = np.random.default_rng(args.seed).integers(4, 4096, 48).tolist()
        prompt[20] = 3  # an EOS inside
        with Server(folder, "--device", args.device, "--max-tokens", 512, "--max-sequences", 16) as server:
            client = Client(server.address)
            report.line(f"  {client.model.device}; {client.channels} channels, {client.model.layers[0].rows} rows"
                        + (", value projection broken" if args.break_weight else ""))
            # The library's rows by the wire: the checkpoint served is the model.
            ids, embeddings = client.lookup([(len(prompt), [])], prompt)
            rows = model.model.layers[client.layer].ple.ple_embedding.ngram_embedding.weight
            expected = rows[torch.from_numpy(ids.astype(np.int64)).cuda()].flatten(1).float().cpu().numpy()
            report.check(np.array_equal(from_bf16(embeddings).reshape(expected.shape), expected), "rows served are the model's")
            with client.stream() as stream:
                remote = RemotePle(client, stream)
                compare(report, copy.deepcopy(model).float(), remote, client, prompt, args.tokens, torch.float32)
                compare(report, model, remote, client, prompt, args.tokens, torch.bfloat16)
            client.close()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
