"""The matrices of common blocks, from which families write down every parameter.

Shapes are [rows, columns] = [out, in]. Split 0 divides the rows over tensor-parallel ranks (q, k,
v, gate, up, embeddings), split 1 the columns (o, down).
"""

from __future__ import annotations

from collections.abc import Callable

from kvpipe.models.families.base import Config, Weight
from kvpipe.models.families.caches import of_layer


def linear(
    name: str,
    rows: int,
    columns: int,
    *,
    layer: int | None = None,
    split: int | None = None,
    parts: int | None = None,
    bias: bool = False,
    count: int = 1,
    quantized: bool = True,
) -> list[Weight]:
    """A matrix, and a bias of its rows where there is one (divided only with the rows)."""
    matrix = Weight(
        name=f"{name}.weight",
        shape=(rows, columns),
        layer=layer,
        split=split,
        parts=parts,
        count=count,
        linear=quantized and layer is not None,
    )
    if not bias:
        return [matrix]
    return [
        matrix,
        Weight(
            name=f"{name}.bias",
            shape=(rows,),
            layer=layer,
            split=0 if split == 0 else None,
            parts=parts,
            count=count,
        ),
    ]


def vector(name: str, *shape: int, layer: int | None = None, split: int | None = None) -> Weight:
    """A small tensor that no quantiser touches."""
    return Weight(name=name, shape=shape, layer=layer, split=split)


def norm(name: str, size: int, *, layer: int | None = None, bias: bool = False) -> list[Weight]:
    parts = ("weight", "bias") if bias else ("weight",)
    return [vector(f"{name}.{part}", size, layer=layer) for part in parts]


def norms(
    config: Config, layer: int, count: int = 2, *, name: str = "norm", bias: bool = False
) -> list[Weight]:
    """`count` norms of hidden_size in one layer."""
    return [
        weight
        for i in range(count)
        for weight in norm(f"{name}.{i}", config.hidden_size, layer=layer, bias=bias)
    ]


def qkv(
    config: Config,
    layer: int,
    *,
    name: str = "self_attn",
    bias: bool = False,
    q_rows: int | None = None,
) -> list[Weight]:
    """Projections to the query heads (q_rows: other than heads x head_size) and the K/V heads."""
    hidden, heads, kv = config.hidden_size, config.num_heads, config.num_kv_heads
    rows = q_rows or heads * config.head_size
    return [
        *linear(f"{name}.q_proj", rows, hidden, layer=layer, split=0, parts=heads, bias=bias),
        *(
            weight
            for part in ("k_proj", "v_proj")
            for weight in linear(
                f"{name}.{part}",
                kv * config.head_size,
                hidden,
                layer=layer,
                split=0,
                parts=kv,
                bias=bias,
            )
        ),
    ]


def attention(
    config: Config,
    layer: int,
    *,
    bias: bool = False,
    o_bias: bool | None = None,
    qk_norm: bool = False,
    name: str = "self_attn",
) -> list[Weight]:
    """q, k, v and o. o_bias: where it differs from bias. qk_norm: a norm a head for q and for k."""
    o_bias = bias if o_bias is None else o_bias
    columns = config.num_heads * config.head_size
    o = linear(
        f"{name}.o_proj",
        config.hidden_size,
        columns,
        layer=layer,
        split=1,
        parts=config.num_heads,
        bias=o_bias,
    )
    head_norms = [n for p in "qk" for n in norm(f"{name}.{p}_norm", config.head_size, layer=layer)]
    return [*qkv(config, layer, name=name, bias=bias), *o, *(head_norms if qk_norm else [])]


def mlp(
    config: Config,
    layer: int,
    width: int,
    *,
    gated: bool = True,
    bias: bool = False,
    name: str = "mlp",
    count: int = 1,
) -> list[Weight]:
    """up (and gate) to `width`, down again. count: equal experts."""
    ups = ("gate_proj", "up_proj") if gated else ("up_proj",)
    hidden = config.hidden_size
    return [
        *(
            weight
            for part in ups
            for weight in linear(
                f"{name}.{part}", width, hidden, layer=layer, split=0, bias=bias, count=count
            )
        ),
        *linear(f"{name}.down_proj", hidden, width, layer=layer, split=1, bias=bias, count=count),
    ]


def router(config: Config, layer: int, experts: int, *, name: str = "mlp.gate") -> list[Weight]:
    """Scores of the experts: small, on every rank, and left alone by quantisers."""
    return linear(name, experts, config.hidden_size, layer=layer, quantized=False)


def embedding(config: Config, name: str = "model.embed_tokens") -> Weight:
    shape = (config.count("vocab_size"), config.hidden_size)
    tied = config.flag("tie_word_embeddings")
    return Weight(name=f"{name}.weight", shape=shape, split=0, tied=tied)


def head(config: Config, *, bias: bool = False) -> list[Weight]:
    """The output projection, unless it is the embedding; a bias is its own in either case."""
    rows = config.count("vocab_size")
    matrix = Weight(name="lm_head.weight", shape=(rows, config.hidden_size), split=0, last=True)
    biases = [Weight(name="lm_head.bias", shape=(rows,), split=0, last=True)] if bias else []
    return biases if config.flag("tie_word_embeddings") else [matrix, *biases]


def decoder(
    config: Config,
    block: Callable[[Config, int], list[Weight]],
    *,
    norm_bias: bool = False,
    head_bias: bool = False,
) -> list[Weight]:
    """Embedding, a block for every layer, the final norm and the head."""
    final = norm("model.norm", config.hidden_size, bias=norm_bias)
    return [
        embedding(config),
        *(weight for i in range(config.num_layers) for weight in block(of_layer(config, i), i)),
        *(Weight(name=w.name, shape=w.shape, last=True) for w in final),
        *head(config, bias=head_bias),
    ]
