"""A Llama network out of a GGUF file, in numpy: one step computes some tokens of several texts together."""

import gguf
import numpy as np

CHUNK = 64  # tokens of a prompt that one step computes, so that others need not wait long for a long prompt


class Text:
    """Tokens of one text. `todo` are those that are not computed; the keys and values of the others are kept."""

    def __init__(self, tokens, network):
        self.todo = tokens
        self.length = 0
        self.memory = np.empty((network.layers, 2, network.kv_heads, 256, network.size), np.float32)

    def room_for(self, count):
        if self.length + count > self.memory.shape[3]:
            self.memory = np.concatenate([self.memory, np.empty_like(self.memory)], axis=3)


class Network:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)

        def field(name):
            return reader.fields[name].contents()

        self.fields = field
        self.layers = field("llama.block_count")
        self.heads, self.kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
        self.size = field("llama.rope.dimension_count")
        self.most = field("llama.context_length")
        self.epsilon = field("llama.attention.layer_norm_rms_epsilon")
        self.weights = {one.name: gguf.dequantize(one.data, one.tensor_type) for one in reader.tensors}
        self.embedding = self.weights["token_embd.weight"]
        self.output = self.weights.get("output.weight", self.embedding)
        self.frequencies = field("llama.rope.freq_base") ** (-np.arange(0, self.size, 2) / self.size)

    def step(self, texts):
        """Computes up to CHUNK of each text's tokens, and returns a row of logits for each that has none left."""
        chunks = [text.todo[:CHUNK] for text in texts]
        for text, chunk in zip(texts, chunks, strict=True):
            text.room_for(len(chunk))
        ends = np.cumsum([len(chunk) for chunk in chunks])
        places = np.concatenate(
            [text.length + np.arange(len(chunk)) for text, chunk in zip(texts, chunks, strict=True)]
        )
        angles = np.exp(1j * places[:, None] * self.frequencies).astype(np.complex64)[:, None]
        x = self.embedding[np.concatenate(chunks)]
        for layer in range(self.layers):
            # All rows, of all texts, go through the weights together: this is what batching gains.
            h = self._norm(x, layer, "attn_norm")
            q, k, v = (self._linear(h, layer, f"attn_{name}").reshape(len(x), -1, self.size) for name in "qkv")
            q, k = _turned(q, angles), _turned(k, angles)
            seen = [
                self._attention(
                    text, layer, q[end - len(chunk) : end], k[end - len(chunk) : end], v[end - len(chunk) : end]
                )
                for text, chunk, end in zip(texts, chunks, ends, strict=True)
            ]
            x = x + self._linear(np.concatenate(seen), layer, "attn_output")
            h = self._norm(x, layer, "ffn_norm")
            gate = self._linear(h, layer, "ffn_gate")
            x = x + self._linear(gate / (1 + np.exp(-gate)) * self._linear(h, layer, "ffn_up"), layer, "ffn_down")
        for text, chunk in zip(texts, chunks, strict=True):
            text.length += len(chunk)
            text.todo = text.todo[len(chunk) :]
        return self._normed(x[ends - 1], self.weights["output_norm.weight"]) @ self.output.T

    def _attention(self, text, layer, q, k, v):
        """What the new tokens of one text (rows of `q`) see of all its tokens so far."""
        new, before = len(q), text.length
        keys, values = text.memory[layer]
        keys[:, before : before + new], values[:, before : before + new] = k.swapaxes(0, 1), v.swapaxes(0, 1)
        keys, values = keys[:, : before + new], values[:, : before + new]
        # Several heads share each of the keys.
        q = q.reshape(new, self.kv_heads, -1, self.size).transpose(1, 2, 0, 3)
        scores = q @ keys[:, None].swapaxes(2, 3) / np.sqrt(np.float32(self.size))
        scores = np.where(np.arange(before + new) > before + np.arange(new)[:, None], np.float32(-np.inf), scores)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        seen = scores / scores.sum(-1, keepdims=True) @ values[:, None]
        return seen.transpose(2, 0, 1, 3).reshape(new, -1)

    def _linear(self, x, layer, name):
        return x @ self.weights[f"blk.{layer}.{name}.weight"].T

    def _norm(self, x, layer, name):
        return self._normed(x, self.weights[f"blk.{layer}.{name}.weight"])

    def _normed(self, x, weight):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(self.epsilon)) * weight


def _turned(x, angles):
    """Rotary positions: each pair of numbers is turned by an angle that grows with the token's place."""
    return (np.ascontiguousarray(x).view(np.complex64) * angles).view(np.float32)
