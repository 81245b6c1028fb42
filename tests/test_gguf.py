"""A GGUF file is read from its header alone: right, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from struct import pack
from typing import Any

import pytest
from gguf_files import F16, PAIRS, TENSORS, gguf, layer

from kvpipe.errors import ConfigError
from kvpipe.models.base import ModelGeometry
from kvpipe.models.hf import PLUGIN


def read(path: Path) -> ModelGeometry:
    options = {"reader": "hf", "dtype": "auto", "repo": None, "probe": False, "draft": None}
    return PLUGIN(PLUGIN.Options(path=str(path), **options)).read()


def written(folder: Path, content: bytes, name: str = "small.gguf") -> Path:
    file = folder / name
    file.write_bytes(content)
    return file


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read(path)
    (line,) = caught.value.lines()
    return line


def of_keys(folder: Path, tensors: Any = TENSORS, **changes: Any) -> Path:
    """The small file with other values; None leaves a key out. "__" stands for a dot."""
    pairs = PAIRS | {key.replace("__", "."): value for key, value in changes.items()}
    kept = {key: value for key, value in pairs.items() if value is not None}
    return written(folder, gguf(kept, tensors))


def test_heads_sizes_and_every_byte_of_the_weights_are_the_headers(tmp_path: Path) -> None:
    model = read(written(tmp_path, gguf()))
    assert [cache.fields for cache in model.caches] == [{"num_kv_heads": 2, "head_size": 64}] * 2
    assert (model.name, model.num_layers, model.hidden_size) == ("Small", 2, 256)
    assert (model.vocab_size, model.context_length) == (100, 4096)
    numbers = 256 * 100 + 2 * (256 * 256 + 2 * 256 * 128)
    quarter_bits = 2 * (256 * 256 + 256 * 128) // 256 * 144  # Q4_K: 144 bytes for 256 numbers
    assert model.parameter_count == numbers
    assert model.weight_bytes == quarter_bits + (256 * 100 + 2 * 256 * 128) * 2


def test_k_and_v_may_differ_in_size(tmp_path: Path) -> None:
    tensors = TENSORS | layer(0, key=192, value=128) | layer(1, key=192, value=128)
    sizes = {"llama__attention__key_length": 96, "llama__attention__value_length": 64}
    model = read(of_keys(tmp_path, tensors, **sizes))
    assert model.caches[0].fields == {"num_kv_heads": 2, "head_size": 96, "head_size_v": 64}


def test_a_window_slides_where_the_file_or_its_architecture_says(tmp_path: Path) -> None:
    window = {"llama__attention__sliding_window": 512}
    line = refused(of_keys(tmp_path, **window))
    assert "sliding_window_pattern" in line and "which layers slide in 'llama'" in line
    listed = window | {"llama__attention__sliding_window_pattern": [True, False]}
    assert [c.spec for c in read(of_keys(tmp_path, **listed)).caches] == ["sliding", "full"]
    gemma = {key.replace("llama", "gemma2"): value for key, value in PAIRS.items()}
    gemma |= {"general.architecture": "gemma2", "gemma2.attention.sliding_window": 512}
    model = read(written(tmp_path, gguf(gemma)))
    assert [c.spec for c in model.caches] == ["sliding", "full"]


def test_latent_rows_are_those_of_their_projection(tmp_path: Path) -> None:
    tensors = {f"blk.{i}.attn_kv_a_mqa.weight": ((256, 576), F16) for i in range(2)}
    model = read(of_keys(tmp_path, tensors))
    assert [(c.spec, c.fields) for c in model.caches] == [("mla", {"head_size": 576})] * 2


@pytest.mark.parametrize(
    ("tensors", "changes", "said"),
    [
        (TENSORS | layer(1, key=64), {}, "blk.1.attn_k): expected 128 rows, as its keys say"),
        (TENSORS | {"blk.0.ssm_a.weight": ((4,), 0)}, {}, "K/V of attention alone, got ssm_a"),
        ({"token_embd.weight": ((256, 100), F16)}, {}, "expected a decoder (blk.*), got 'llama'"),
        ({"dec.blk.0.attn_k.weight": ((256, 128), F16)}, {}, "expected a decoder (blk.*)"),  # T5
        (TENSORS | {"blk.0.shortconv.conv.weight": ((256, 3), F16)}, {}, "got shortconv.conv"),
        (TENSORS, {"llama__pooling_type": 1}, "expected a decoder (blk.*)"),
        (TENSORS, {"general__architecture": None}, "general.architecture): expected a name"),
        (TENSORS, {"llama__block_count": 0}, "llama.block_count): expected a whole number"),
        (TENSORS, {"llama__block_count": 3}, "blk.2): expected attn_k, attn_qkv"),
        (TENSORS, {"llama__block_count": 20_000}, "and at most 10,000"),
        (TENSORS, {"llama__context_length": None}, "llama.context_length): expected"),
        (TENSORS, {"llama__attention__head_count": [4, 4, 4]}, "expected 2 numbers of heads"),
        (TENSORS, {"llama__attention__head_count_kv": "two"}, "head_count_kv): expected"),
        (TENSORS | {"x": ((4,), 99)}, {}, "ggml types that kvpipe knows, got 99"),
        (TENSORS | {"x": ((2**63,), 0)}, {}, "a whole GGUF header, got a tensor of"),
    ],
)
def test_what_contradicts_itself_is_one_line(
    tensors: Any, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    line = refused(of_keys(tmp_path, tensors, **changes))
    assert line.startswith("model.path (") and said in line, line


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.full)])
def test_a_header_cut_anywhere_is_one_line(step: int, tmp_path: Path) -> None:
    whole = gguf()
    for end in range(0, len(whole), step):
        assert "small.gguf" in refused(written(tmp_path, whole[:end])), end
    read(written(tmp_path, whole))


def test_one_wrong_byte_is_read_or_refused_but_never_a_traceback(tmp_path: Path) -> None:
    whole = gguf()
    for at in range(0, len(whole), 3):
        changed = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
        try:
            read(written(tmp_path, changed))
        except ConfigError as error:
            assert len(error.lines()) == 1


def test_ten_thousand_keys_and_a_long_vocabulary_are_read(tmp_path: Path) -> None:
    more = {f"note.{i}": i for i in range(10_000)}
    words = {"tokenizer.ggml.tokens": [f"w{i}" for i in range(30_000)]}
    assert read(written(tmp_path, gguf(PAIRS | more | words))).vocab_size == 30_000


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "an empty file"),
        (b"nonsense", "without the letters GGUF"),
        (gguf(version=1), "got version 1"),
        (b"GGUF" + pack("<IQQ", 3, 2**62, 1), "4,611,686,018,427,387,904 tensors"),
        (b"GGUF" + pack("<IQQ", 3, 0, 1) + pack("<Q", 2**63), "the end of the file"),
    ],
)
def test_what_is_no_gguf_file_says_so(content: bytes, said: str, tmp_path: Path) -> None:
    assert said in refused(written(tmp_path, content))


def test_all_parts_of_a_file_are_counted_and_a_missing_one_is_named(tmp_path: Path) -> None:
    first = {name: t for name, t in TENSORS.items() if "blk.1" not in name}
    second = {name: t for name, t in TENSORS.items() if "blk.1" in name}
    one = written(tmp_path, gguf(PAIRS, first), "m-00001-of-00002.gguf")
    assert "1 missing: m-00002-of-00002.gguf" in refused(one)
    written(tmp_path, gguf({}, second), "m-00002-of-00002.gguf")
    assert read(one).weight_bytes == read(written(tmp_path, gguf())).weight_bytes


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "none.gguf")
