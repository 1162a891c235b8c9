"""Checkpoints with random BF16 weights in the released layout: config.json, an index, shards over many safetensors files.

    checkpoint.py OUT [--base N] [--hidden N] [--embed N] ...
"""
import argparse
import json
import pathlib
import struct

import numpy as np

from oracle import Geometry, hash_constants
from pleiad_client import from_bf16, to_bf16

DTYPES = {np.dtype(np.uint16): "BF16", np.dtype(np.int64): "I64", np.dtype(np.float32): "F32"}


def random_weights(geometry, seed):
    """BF16 weights as uint16, by name; of a size that lets every part of the stage count."""
    generator = np.random.default_rng(seed)

    def normal(*shape, deviation):
        return to_bf16(generator.standard_normal(shape, np.float32) * np.float32(deviation))

    g = geometry
    return {
        "rows": normal(hash_constants(g)[3], g.head_dim, deviation=1.0),
        "key_proj": normal(g.channels, g.embed, deviation=g.embed**-0.5),
        "value_proj": normal(g.hidden, g.embed, deviation=g.embed**-0.5),
        "norm_key": normal(g.channels, deviation=0.3),
        "norm_query": normal(g.channels, deviation=0.3),
        "norm_conv": normal(g.channels, deviation=0.3),
        "conv1d": normal(g.channels, g.kernel, deviation=0.5),
    }


def widened(weights):
    """The same as F32 values."""
    return {name: from_bf16(values).reshape(values.shape) for name, values in weights.items()}


def broken(weights):
    """The same with one weight off by a percent: what a comparison must find."""
    value = from_bf16(weights["value_proj"]).reshape(weights["value_proj"].shape)
    return {**weights, "value_proj": to_bf16(value * np.float32(1.01))}


def config(geometry):
    g = geometry
    text = {
        "model_type": "qwen4_exp_text", "hidden_size": g.hidden, "hc_count": g.streams, "ple_layer_ids": [g.layer_id],
        "ple_embed_dim": g.embed, "ple_conv_kernel_size": g.kernel, "ngram_size": g.ngram,
        "heads_per_ngram": g.heads_per_ngram, "ngram_vocab_size_base": g.base,
        "make_ngram_vocab_size_divisible_by": g.divisor, "seed": g.seed, "split_ngram_parts": 512,
        "vocab_size": g.vocab, "num_hidden_layers": g.num_layers, "eos_token_id": g.eos, "rms_norm_eps": g.eps}
    return {"model_type": "qwen4_exp", "architectures": ["Qwen4ExpForConditionalGeneration"], "text_config": text}


def write_safetensors(path, tensors):
    """`tensors`: name -> array; BF16 are uint16."""
    header, offset = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": DTYPES[values.dtype], "shape": list(values.shape),
                        "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values).data)


def write(out, geometry, weights, shards=24, files=5):
    """Writes the checkpoint folder and returns it."""
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    multipliers, sizes, offsets, rows = hash_constants(geometry)
    prefix = f"model.language_model.layers.{geometry.layer_id - 1}.ple."
    tensors = {f"{prefix}{name}.weight": weights[name]
               for name in ("key_proj", "value_proj", "norm_key", "norm_query", "norm_conv")}
    tensors[f"{prefix}conv1d.weight"] = weights["conv1d"].reshape(geometry.channels, 1, geometry.kernel)
    embedding = f"{prefix}ple_embedding."
    tensors[f"{embedding}layer_multipliers"] = multipliers
    tensors[f"{embedding}ngram_heads_vocab_sizes"] = sizes
    tensors[f"{embedding}ngram_heads_offsets"] = offsets
    length = -(-rows // shards)
    for shard in range(shards):
        tensors[f"{embedding}ngram_embedding.shard_{shard}.weight"] = weights["rows"][shard * length:(shard + 1) * length]
    # Tensors of other layers lie in between, as in the released files.
    for i in range(files):
        tensors[f"model.language_model.layers.{i}.other.weight"] = np.full(3 + i, 0x3F80, np.uint16)
    parts = [{} for _ in range(files)]
    for i, name in enumerate(tensors):
        parts[i % files][name] = tensors[name]
    where = {}
    for i, part in enumerate(parts):
        file = f"model-{i + 1:05}-of-{files:05}.safetensors"
        write_safetensors(out / file, part)
        where.update({name: file for name in part})
    total = sum(values.nbytes for values in tensors.values())
    (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}))
    (out / "config.json").write_text(json.dumps(config(geometry), indent=1))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, default=1)
    for name in ("hidden", "streams", "embed", "kernel", "ngram", "heads_per_ngram", "base", "vocab", "eos"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    args = vars(parser.parse_args())
    out, seed = args.pop("out"), args.pop("seed")
    geometry = Geometry(**{name: value for name, value in args.items() if value is not None})
    write(out, geometry, random_weights(geometry, seed))


if __name__ == "__main__":
    main()
