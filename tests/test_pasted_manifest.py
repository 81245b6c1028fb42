"""A Kubernetes or Compose file that people paste is the command line of its container."""

from __future__ import annotations

import pytest

from kvpipe.engines.manifest import manifest_commands
from kvpipe.engines.pasted import read_pasted
from kvpipe.engines.pasted_line import changed_line

LINE = (
    "vllm serve Qwen/Qwen3-30B-A3B --max-model-len 40960 --tensor-parallel-size 2 "
    "--gpu-memory-utilization 0.95"
)
POD = """
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: log-shipper
        image: fluent-bit
        args: ["--quiet"]
      - name: server
        image: vllm/vllm-openai:v0.10.2
{}
        resources:
          limits: {{nvidia.com/gpu: 2}}
"""
COMPOSE = """
services:
  server:
    image: vllm/vllm-openai:v0.10.2
{}
"""
WORDS = """
        args:
        - Qwen/Qwen3-30B-A3B
        - --max-model-len=40960
        - --gpu-memory-utilization=0.95
        - --tensor-parallel-size
        - "2"
"""
FLAGS = LINE.partition("serve ")[2]
ARRAY = str(FLAGS.split()).replace("'", '"')
FORMS = {
    "command and args": POD.format(f'        command: ["vllm", "serve"]{WORDS}'),
    "command as a list": POD.format(f"        command:\n        - vllm\n        - serve{WORDS}"),
    "arrays": POD.format(f'        command: ["vllm", "serve"]\n        args: {ARRAY}'),
    "the image's own entry point": POD.format(f"        args: {ARRAY}"),
    "a shell": POD.format(
        '        command: ["/bin/sh", "-c"]\n        args:\n        - >-\n          '
        + LINE.replace(" --gpu", "\n          --gpu")
    ),
    "a compose file": COMPOSE.format(f"    command: --model {FLAGS}"),
    "a compose file's list": COMPOSE.format(f"    command: {ARRAY}"),
    "an entry point": COMPOSE.format(f"    entrypoint: [vllm, serve]\n    command: {FLAGS}"),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_the_line_that_its_container_runs(form: str) -> None:
    found, line = read_pasted(FORMS[form]), read_pasted(LINE)
    assert found is not None and line is not None
    assert (found.model, found.settings) == (line.model, line.settings)
    told = changed_line(found, {"scheduler.max_num_seqs": 64})
    again = read_pasted(told)
    assert again is not None and told.startswith("vllm serve ")
    assert again.settings == {**line.settings, "scheduler.max_num_seqs": 64}


@pytest.mark.parametrize(
    "environment",
    [
        "        env:\n        - name: VLLM_PP_LAYER_PARTITION\n          value: 20,28",
        "        environment:\n        - VLLM_PP_LAYER_PARTITION=20,28\n        - A=1",
        "        environment: {VLLM_PP_LAYER_PARTITION: '20,28'}",
    ],
)
def test_the_setting_that_only_the_environment_carries_is_read(environment: str) -> None:
    found = read_pasted(POD.format(f"{environment}\n        args: [m/n, -pp, '2']"))
    assert found is not None and found.settings["parallel.pipeline_partition"] == [20, 28]


def test_a_line_without_a_model_is_not_given_back() -> None:
    found = read_pasted("vllm serve --max-model-len 8192")
    assert found is not None and changed_line(found, {"scheduler.max_num_seqs": 64}) == ""


@pytest.mark.parametrize(
    "text",
    [
        "args: [" + "[" * 30_000,
        "a: &a [args: 1]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(9_000)),
        "args: [a]\nx0: &x0 [1]\n"
        + "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]\n" for i in range(1, 40)),
        "args: !!python/object/apply:os.system [true]",
        "command: {\nargs: - -",
        "command: *nobody",
    ],
)
def test_files_of_somebody_else_are_measured_before_they_are_built(text: str) -> None:
    """Built, a bomb of aliases takes all the memory, and this test does not come back."""
    assert list(manifest_commands(text[: 2**16])) in ([], [["true"]], [["a"]])
