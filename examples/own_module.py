"""A model of your own, thirty lines of torch, generating through a planned cache.

    python examples/own_module.py

Nothing is trained: weights are random, and what counts is that the text is the same as without a
cache. Every third layer sees all tokens, the others a window, so the plan has two kinds of blocks.
Attention is done twice: on gathered K and V, and on the pages through the block table.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import kvpipe
from kvpipe.integrations.own_module import OwnCache, bind, layers_of
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.sliding import SlidingWindowSpec

VOCAB, WIDTH, HEADS, KV_HEADS, LAYERS, WINDOW = 64, 32, 4, 2, 6, 12
HEAD = WIDTH // HEADS


class Attention(nn.Module):
    def __init__(self, name: str, window: int | None) -> None:
        super().__init__()
        self.name, self.window = name, window
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False) for _ in "kv")

    def forward(self, x, positions, spans, cache: OwnCache | None, by_table: bool):
        """x [T, WIDTH] of several requests, one after the other. spans: request -> its rows."""
        k, v = self.k(x).view(-1, KV_HEADS, HEAD), self.v(x).view(-1, KV_HEADS, HEAD)
        q = self.q(x).view(-1, HEADS, HEAD)
        if cache is not None:
            cache.write(self.name, k, v)
        out = [
            self.attend(q[rows], positions[rows], *self.seen(k[rows], v[rows], i, cache, by_table))
            for i, rows in enumerate(spans)
        ]
        return torch.cat(out)

    def seen(self, k, v, index: int, cache: OwnCache | None, by_table: bool):
        """K and V [n, H, D] of the request, and the position of their first token."""
        if cache is None:
            return k, v, 0
        if not by_table:
            found = cache.gather(self.name, cache.requests[index])
            return found.keys, found.values, found.first
        pages = cache.pages(self.name)
        ids, length = cache.block_table(self.name)[index], int(cache.seq_lens[index])
        first = int((ids > 0).int().argmax())
        size = pages[0].shape[1]
        held = ids[first : -(-length // size)].long()
        k, v = (page[held].flatten(0, 1)[: length - first * size] for page in pages)
        return k, v, first * size

    def attend(self, q, positions, k, v, first: int):
        where = torch.arange(first, first + len(k))
        mask = where <= positions[:, None]
        if self.window is not None:
            mask &= where > positions[:, None] - self.window
        q, k, v = (each.transpose(0, 1) for each in (q, k, v))
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return out.transpose(0, 1).flatten(1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.attention = nn.ModuleList(
            Attention(f"layers.{i}", None if i % 3 == 2 else WINDOW) for i in range(LAYERS)
        )

    def kv_cache_layers(self, block_size: int) -> list[CacheLayer]:
        """The protocol: what this model caches, in kvpipe's words."""
        sizes = dict(block_size=block_size, num_kv_heads=KV_HEADS, head_size=HEAD, dtype="float32")
        return [
            CacheLayer(
                name=layer.name,
                spec=FullAttentionSpec(**sizes)
                if layer.window is None
                else SlidingWindowSpec(**sizes, sliding_window=layer.window),
            )
            for layer in self.attention
        ]

    def forward(self, ids, positions, spans, cache=None, by_table=False):
        x = self.embed(ids) + torch.sin(positions[:, None] * torch.arange(1, WIDTH + 1) / 7)
        for layer in self.attention:
            x = x + layer(nn.functional.rms_norm(x, (WIDTH,)), positions, spans, cache, by_table)
        return self.head(nn.functional.rms_norm(x, (WIDTH,)))


def generate(model: Model, prompts: list[list[int]], new: int, cache=None, by_table=False):
    """Greedy text of every prompt; all tokens are computed anew each time where cache is None."""
    texts = [list(prompt) for prompt in prompts]
    done = [0] * len(texts)  # tokens of each that the cache has
    for row in range(len(texts) if cache else 0):
        cache.add(row)
    for _ in range(new):
        starts = done if cache else [0] * len(texts)
        rows = [text[start:] for text, start in zip(texts, starts, strict=True)]
        ends = torch.tensor([len(row) for row in rows]).cumsum(0).tolist()
        spans = [slice(end - len(row), end) for row, end in zip(rows, ends, strict=True)]
        positions = torch.cat(
            [torch.arange(start, start + len(row)) for start, row in zip(starts, rows, strict=True)]
        )
        if cache:
            cache.step({i: len(row) for i, row in enumerate(rows)})
        logits = model(torch.tensor(sum(rows, [])), positions, spans, cache, by_table)
        done = [len(text) for text in texts]
        for text, end in zip(texts, ends, strict=True):
            text.append(int(logits[end - 1].argmax()))
    return texts


def main() -> None:
    torch.manual_seed(0)
    model = Model().eval()
    for matrix in model.parameters():
        matrix.data.mul_(3)  # else the text hardly depends on its context
    prompts = [torch.randint(VOCAB, (n,)).tolist() for n in (21, 5, 13)]
    limits = RequestLimits(max_model_len=128, max_num_batched_tokens=128)
    plan = kvpipe.plan(layers_of(model, block_size=4), limits, 1 << 20)
    with torch.no_grad():
        expected = generate(model, prompts, 24)
        for by_table in (False, True):
            cache = bind(plan)
            found = generate(model, prompts, 24, cache, by_table)
            way = "by block table" if by_table else "gathered"
            assert found == expected, way
            print(f"{way}: 3 x 24 tokens as without a cache, {cache.bytes_held:,} bytes held")


if __name__ == "__main__":
    main()
