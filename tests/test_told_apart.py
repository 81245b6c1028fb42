"""Sizes that differ by little are told in one unit, with as many digits as show it."""

from kvpipe.front.main import run


def test_a_cache_that_lacks_a_little_is_told_in_gib_as_all_else_is(
    capsys, tmp_path, monkeypatch
) -> None:
    """131,072 tokens of 128 KiB are 16 GiB (8,192 blocks of 2 MiB); a MiB less is given."""
    monkeypatch.chdir(tmp_path)
    asked = ["llama", "device=h100_80gb", "scheduler.max_model_len=131072", "backend=meta"]
    given = 8192 * 2 * 2**20 - 2**20
    assert run([*asked, f"cache.kv_cache_memory_bytes={given}"]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "16.002 GiB" in told and "15.999 GiB" in told and " bytes" not in told, told
