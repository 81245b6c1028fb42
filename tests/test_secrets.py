"""What a pasted line holds in secret is neither shown nor kept."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from kvpipe.engines.pasted import read_pasted
from kvpipe.front.main import run
from kvpipe.text.secrets import masked_text, masked_words

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
SECRETS = ("hf_aaa", "sk-bbb", "sk-ccc", "pw ddd")
LINE = (
    "HF_TOKEN=hf_aaa docker run -e HF_TOKEN=hf_aaa -e 'DB_PASSWORD=pw ddd' --env=my_secret=sk-ccc "
    f"vllm/vllm-openai:v0.17.0 --model {MODEL} --api-key sk-bbb sk-ccc --hf-token=hf_aaa "
    "--max-model-len 8192"
)


@pytest.mark.parametrize("form", ["word", "words", "file", "array"])
def test_no_secret_of_a_pasted_line_is_shown_or_kept(
    form: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    paste = tmp_path / "paste.txt"
    array = ", ".join(f'"{word}"' for word in shlex.split(LINE))
    paste.write_text(f"CMD [{array}]" if form == "array" else LINE)
    words = {"word": [LINE], "words": shlex.split(LINE)}.get(form, [str(paste)])
    assert run(["doctor", *words, "--on", "h100", "hydra.run.dir=out"]) == 0
    told = capsys.readouterr()
    kept = [path.read_text() for path in Path("out").rglob("*") if path.is_file()]
    assert len(kept) >= 4
    for text in (told.out, told.err, *kept):
        assert not [secret for secret in SECRETS if secret in text]
    assert "--api-key $API_KEY" in told.out and "--max-model-len 8192" in told.out


def test_a_wrong_line_is_not_repeated_with_its_secrets(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["doctor", "HF_TOKEN=hf_aaa some-server --api-key sk-bbb", "--on", "h100"]) == 2
    assert not [secret for secret in SECRETS if secret in capsys.readouterr().err]


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve org/m --max-num-batched-tokens 8192 --num-speculative-tokens 2",
        "TOKENIZERS_PARALLELISM=false vllm serve org/m --tokenizer org/t",
        "vllm serve org/m --long-prefill-token-threshold 4 --api-key $KEY --hf-token=${HF_TOKEN}",
        "vllm serve org/m --api-key",
        "plain text\nwith  'a quote that does not end",
    ],
)
def test_what_is_no_secret_is_left_to_the_letter(line: str) -> None:
    assert masked_text(line) == line


def test_a_model_after_a_key_is_still_the_model() -> None:
    found = read_pasted("vllm serve --api-key sk-bbb org/m")
    assert found is not None and found.arguments == ("--api-key", "$API_KEY", "org/m")
    assert masked_words(["--hf-token", "hf_aaa", "org/m"]) == ["--hf-token", "$HF_TOKEN", "org/m"]
