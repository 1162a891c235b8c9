"""The Transformers library's own PLE layer, with weights of checkpoint.random_weights, on the GPU."""
import numpy as np
import torch
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextPLELayer


def library_config(geometry):
    g = geometry
    return Qwen4ExpTextConfig(
        vocab_size=g.vocab, hidden_size=g.hidden, num_hidden_layers=g.num_layers, hc_count=g.streams,
        ple_layer_ids=[g.layer_id], ple_embed_dim=g.embed, ple_conv_kernel_size=g.kernel, ngram_size=g.ngram,
        heads_per_ngram=g.heads_per_ngram, ngram_vocab_size_base=g.base, make_ngram_vocab_size_divisible_by=g.divisor,
        seed=g.seed, eos_token_id=g.eos, rms_norm_eps=g.eps,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"})


def tensor(values, dtype, device="cuda"):
    """A BF16 array as uint16 on the device as `dtype`."""
    return torch.from_numpy(values.view(np.int16)).to(device).view(torch.bfloat16).to(dtype)


class LibraryLayer:
    """FP64 (the RMS norms alone compute in FP32, as the library writes them) and the library's BF16 path, side by side."""

    def __init__(self, geometry, weights, device="cuda"):
        self.geometry, self.device = geometry, device
        self._layers = {dtype: self._make(weights, dtype) for dtype in (torch.float64, torch.bfloat16)}
        self._ids, self._rounded = None, False
        embedding = self._layers[torch.bfloat16].ple_embedding.ngram_embedding
        embedding.register_forward_pre_hook(self._note_ids)
        for projection in (self._layers[torch.float64].key_proj, self._layers[torch.float64].value_proj):
            projection.register_forward_hook(self._round)

    def _note_ids(self, _, arguments):
        self._ids = arguments[0]

    def _round(self, _, arguments, output):
        return output.bfloat16().to(output.dtype) if self._rounded else None

    def _make(self, weights, dtype):
        g = self.geometry
        with torch.device(self.device):
            layer = Qwen4ExpTextPLELayer(library_config(g), g.layer_id - 1, g.dense).to(dtype).eval()
        pairs = {"key_proj": layer.key_proj, "value_proj": layer.value_proj, "norm_key": layer.norm_key,
                 "norm_query": layer.norm_query, "norm_conv": layer.norm_conv, "conv1d": layer.conv1d,
                 "rows": layer.ple_embedding.ngram_embedding}
        with torch.no_grad():
            for name, module in pairs.items():
                values = tensor(weights[name], dtype, self.device)
                if name == "conv1d":
                    values = values.unsqueeze(1)
                if values.shape != module.weight.shape:
                    raise RuntimeError(f"{name}: the library has {tuple(module.weight.shape)}, the checkpoint {tuple(values.shape)}")
                module.weight.copy_(values)
        return layer

    def _run(self, dtype, tokens, highway):
        ids = torch.tensor(np.asarray(tokens, np.int64), device=self.device)[None]
        states = torch.from_numpy(np.ascontiguousarray(highway)).to(self.device).to(dtype)[None]
        with torch.no_grad():
            return self._layers[dtype](states, ids, None)[0].double().cpu().numpy()

    def ids(self, tokens):
        states = np.zeros((len(tokens), self.geometry.channels), np.float32)
        self._run(torch.bfloat16, tokens, states)
        return self._ids[0].reshape(len(tokens), -1).cpu().numpy().astype(np.uint64)

    def truth(self, tokens, highway, rounded=False):
        """What the layer adds to `highway` [tokens, C] F32 of a whole sequence, in FP64; `rounded`: with k and v rounded to BF16."""
        self._rounded = rounded
        return self._run(torch.float64, tokens, highway)

    def bf16(self, tokens, highway):
        """The same by the library's BF16 path; the highway is rounded to BF16 first."""
        return self._run(torch.bfloat16, tokens, highway)
