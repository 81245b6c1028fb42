"""Every type that transformers generates with is read to the byte, or refused by name.

The tiny models, and what their own caches held after 9, 10 and 64 tokens, are recorded
(tests/facts/README.md); the full tier builds and runs them again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from type_records import differences, records, ties

from kvpipe.errors import ConfigError
from kvpipe.models.base import ModelGeometry
from kvpipe.models.config_file import parse_config
from kvpipe.models.families import families
from kvpipe.models.families.by_keys import family_by_keys
from kvpipe.models.families.classes import facts_of
from kvpipe.models.families.refused import REASONS
from kvpipe.models.reading import read_geometry

# As a publisher writes it, and as transformers does.
FORMS = ("sparse", pytest.param("full", marks=pytest.mark.full))
# What an engine stores is not what transformers caches: K and V of every head, not latent rows.
STORED_OTHERWISE = {"minicpm3": 2 * 4 * (16 + 8)}  # numbers a token and layer, by hand
MEASURED = sorted(name for name, record in records().items() if "self" in record)


def read(raw: Mapping[str, Any], name: str) -> ModelGeometry:
    return read_geometry(parse_config(json.dumps(raw), "config.json", name, None))


def verdict(name: str, form: str) -> str:
    """right, refused, or where the plan is wrong."""
    record = records()[name]
    try:
        model = read(record[form], name)
    except ConfigError:
        return "refused"
    wrong = differences(model, record)
    return "; ".join(wrong) if wrong and name not in STORED_OTHERWISE else "right"


def test_the_records_are_of_every_type_that_generates() -> None:
    assert len(records()) == 329
    assert len(MEASURED) >= 311


@pytest.mark.parametrize("form", FORMS)
def test_no_plan_differs_from_transformers_own_cache_and_most_types_are_read(form: str) -> None:
    verdicts = {name: verdict(name, form) for name in MEASURED}
    wrong = {name: said for name, said in verdicts.items() if said not in ("right", "refused")}
    assert not wrong
    assert sum(said == "right" for said in verdicts.values()) >= 307


def test_what_is_not_measured_is_refused_by_name() -> None:
    for name in sorted(set(records()) - set(MEASURED)):
        raw = records()[name].get("full") or {"model_type": name}
        with pytest.raises(ConfigError) as caught:
            read(raw, name)
        assert all(problem.key for problem in caught.value.problems), name


def test_what_the_class_of_the_whole_gives_its_text_part_is_read() -> None:
    """Voxtral's class fills what its text_config leaves out, a Llama's own class otherwise."""
    model = read({"model_type": "voxtral", "text_config": {"model_type": "llama"}}, "voxtral")
    alone = read({"model_type": "llama"}, "llama")
    sizes = [(m.num_layers, m.hidden_size, *m.caches[0].fields.values()) for m in (model, alone)]
    assert sizes == [(30, 3072, 8, 128), (32, 4096, 32, 128)]


def test_a_type_that_is_not_read_is_refused_with_its_reason_in_one_line() -> None:
    assert not REASONS.keys() & families().keys()
    for name, reason in REASONS.items():
        with pytest.raises(ConfigError) as caught:
            read({"model_type": name}, name)
        (line,) = caught.value.lines()
        assert reason in line


def test_every_type_that_was_measured_is_read_or_has_a_reason() -> None:
    for name in MEASURED:
        try:
            read(records()[name]["full"], name)
        except ConfigError as error:
            told = " ".join(error.lines())
            assert any(f": {reason}" in told for reason in REASONS.values()), told


def test_layers_that_see_images_alone_hold_the_tokens_of_one_image() -> None:
    vision = {"image_size": 560, "patch_size": 14, "max_num_tiles": 4}
    raw = records()["mllama"]["sparse"] | {"vision_config": vision}
    model = read(raw, "mllama")
    assert [c.layer for c in model.caches if c.spec == "cross"] == [3]
    assert model.encoder_tokens == 4 * (40 * 40 + 1)


@pytest.mark.parametrize(("mode", "held"), [("per_loop", 1 + 2 * 3 + 1), ("last_loop", 1 + 2 + 1)])
def test_every_pass_over_a_layer_has_a_cache_of_its_own(mode: str, held: int) -> None:
    """One layer in front, two that run three times, one behind; a file lists MLPs as layers too."""
    kinds = ["full_attention", "mlp"] * 4
    loops = {"n_input_layers": 2, "n_recurrent_layers": 4, "n_output_layers": 2}
    raw = {"model_type": "dory", "num_hidden_layers": 8, "layer_types": kinds, **loops}
    model = read(raw | {"n_recurrent_loops": 3, "recurrent_kv_cache_mode": mode}, "dory")
    assert (model.num_layers, len(model.caches)) == (4, held)
    assert len({cache.name for cache in model.caches}) == held


@pytest.mark.parametrize("name", STORED_OTHERWISE)
def test_an_engine_that_stores_otherwise_than_transformers_is_followed(name: str) -> None:
    model = read(records()[name]["sparse"], name)
    numbers = [2 * c.fields["num_kv_heads"] * c.fields["head_size"] for c in model.caches]
    assert numbers == [STORED_OTHERWISE[name]] * len(numbers)


def parameters(record: Mapping[str, Any]) -> int:
    """Of the part that generates: towers and what joins them to it are apart."""
    parts: Mapping[str, int] = record["parameters"]
    names = ("language_model", "text_model", "lm_head")
    if not any(name in part for part in parts for name in names[:2]):
        return sum(parts.values())
    return sum(n for part, n in parts.items() if any(name in part for name in names))


def counted(form: str) -> dict[str, tuple[int, int]]:
    """Type -> parameters planned and of the model, where its row counts them."""
    found = {}
    for name in MEASURED:
        record = records()[name]
        if record["text_type"] in families() and families()[record["text_type"]].weights:
            model = read(record[form], name)
            assert model.parameter_count is not None
            found[name] = (model.parameter_count - model.tower_parameters, parameters(record))
    return found


@pytest.mark.full
@pytest.mark.parametrize("form", ["sparse", "full"])
def test_parameters_of_the_part_that_generates_are_those_of_the_meta_model(form: str) -> None:
    found = {name: both for name, both in counted(form).items() if both[0] != both[1]}
    assert len(counted(form)) >= 220
    assert not set(found) - UNCOUNTED, sorted(set(found) - UNCOUNTED)


# Experts that are the identity have a first matrix in transformers' class, which no file stores.
# BERT's head is that of its masked class; Janus has a head of its own whatever its file says;
# Granite 4 Vision was measured by its text part alone, which has none.
UNCOUNTED = {
    "longcat_flash", "bert", "roberta", "janus", "granite4_vision",
    "encoder-decoder", "speech-encoder-decoder", "vision-encoder-decoder",
}  # fmt: skip


def test_towers_that_a_file_does_not_describe_are_not_counted_and_that_is_said() -> None:
    raw = {k: v for k, v in records()["gemma3"]["sparse"].items() if k != "vision_config"}
    model = read(raw, "gemma3")
    assert model.tower_parameters == 0
    assert "weights are those of the text part; other towers are not counted" in model.notes


def test_a_tower_whose_section_is_empty_is_the_one_of_its_class() -> None:
    raw = {"model_type": "qwen2_vl", "text_config": {}, "vision_config": {}}
    assert read(raw, "qwen2_vl").tower_parameters == 675_759_104


@pytest.mark.full
def test_towers_of_full_size_are_those_of_the_meta_model() -> None:
    """Those of the classes of transformers 5.24, built on the meta device: in a tiny file one
    dimension may equal another."""
    clip = {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "patch_size": 14}
    clip |= {"num_hidden_layers": 24, "model_type": "clip_vision_model"}
    sizes = {
        "qwen2_vl": ({}, 675_759_104), "qwen3_vl": ({}, 566_949_104),
        "gemma3": ({"model_type": "siglip_vision_model"}, 94_654_464),
        "llava": (clip, 324_487_168),
        "internvl": ({}, 337_509_376), "glm4v": ({}, 892_498_432),
        "idefics3": ({}, 171_270_144), "qwen3_5": ({}, 453_650_672),
        "qwen3_omni_moe_thinker": ({}, 1_216_843_888),
    }  # fmt: skip
    for name, (vision, towers) in sizes.items():
        raw = {"model_type": name, "text_config": {}, "vision_config": vision, "audio_config": {}}
        assert read(raw, name).tower_parameters == towers, name


# --- by standard keys ----------------------------------------------------------------------------
def by_keys(name: str, form: str) -> str:
    """What is said of a type as if it had no family."""
    record = records()[name]
    names = ["ForMaskedLM"] if record["encodes"] else [record["class"]]
    raw = record[form] | {"architectures": names}
    file = parse_config(json.dumps(raw), "config.json", name, None)
    try:
        family = family_by_keys(file.raw, file.text)
        caches = family.caches(family.config(file.text))
    except ConfigError:
        return "refused"
    model = ModelGeometry(
        name=name, file_dtype="float32", context_length=512, num_layers=1, caches=tuple(caches)
    )
    return "; ".join(differences(model, record)) or "right"


@pytest.mark.parametrize("form", FORMS)
def test_standard_keys_alone_are_never_wrong(form: str) -> None:
    verdicts = {name: by_keys(name, form) for name in MEASURED}
    assert {said for said in verdicts.values()} <= {"right", "refused"}
    if form == "full":
        assert sum(said == "right" for said in verdicts.values()) >= 60


def full_record(**changes: Any) -> dict[str, Any]:
    """A file of a type that nobody knows, as its class would save it."""
    own = records()["qwen3"]["full"] | {"architectures": ["NewForCausalLM"], "model_type": "new"}
    return own | changes


def test_a_type_without_a_family_is_labelled_and_its_unknown_keys_are_named() -> None:
    model = read(full_record(flavour="new"), "new")
    assert model.source == "config.json, by standard keys"
    assert "'new' has no family: read by standard keys; keys not read: flavour" in model.notes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head_dim": None}, "head_dim"),
        ({"num_key_value_heads": None}, "num_key_value_heads"),
        ({"mamba_d_state": 16}, "mamba_d_state"),
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers"),
        ({"cross_layer_interval": 2}, "cross_layer_interval"),
        ({"layer_types": None, "use_sliding_window": True, "sliding_window": 16}, "layer_types"),
        ({"architectures": ["NewModel"]}, "architectures"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
    ],
)
def test_what_standard_keys_cannot_say_refuses_the_file(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(full_record(**changes), "new")
    (line,) = caught.value.lines()
    assert "its keys alone do not say it" in line and said in line


def test_a_file_that_was_cut_down_is_refused() -> None:
    kept = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "head_dim", "max_position_embeddings", "architectures", "model_type")  # fmt: skip
    cut = {key: value for key, value in full_record().items() if key in kept}
    with pytest.raises(ConfigError) as caught:
        read(cut, "new")
    assert "as its class saves it" in str(caught.value)


# --- never "no cache" for what generates -------------------------------------------------------
def test_encoders_store_nothing_and_an_architecture_that_generates_is_no_encoder() -> None:
    encoders = [name for name in MEASURED if records()[name]["encodes"]]
    encoders = [name for name in encoders if not records()[name]["self"][0]]
    assert len(encoders) >= 12
    for name in sorted(set(encoders) & families().keys()):
        raw = records()[name]["sparse"]
        assert {cache.spec for cache in read(raw, name).caches} == {"encoder_only"}, name
        with pytest.raises(ConfigError, match="architectures"):
            read(raw | {"architectures": ["BertLMHeadModel"]}, name)


@pytest.mark.parametrize("name", ["encoder-decoder", "vision-encoder-decoder"])
def test_two_models_that_were_put_together_are_not_the_first_alone(name: str) -> None:
    with pytest.raises(ConfigError, match="decoder: expected the part that generates"):
        read({k: v for k, v in records()[name]["sparse"].items() if k != "decoder"}, name)


@pytest.mark.parametrize(("name", "tied"), [("mistral3", True), ("qwen3_vl_moe", False)])
def test_the_class_of_the_whole_says_whether_the_head_is_the_embedding(
    name: str, tied: bool
) -> None:
    """Where the file does not: its part's class would say the opposite."""
    raw = records()[name]["sparse"]
    said = {**raw, "tie_word_embeddings": tied}
    assert read(raw, name).parameter_count == read(said, name).parameter_count
    other = {**raw, "tie_word_embeddings": not tied}
    assert read(raw, name).parameter_count != read(other, name).parameter_count


@pytest.mark.full
def test_no_type_that_generates_is_said_to_keep_nothing() -> None:
    for name in MEASURED:
        record = records()[name]
        if not record["self"][0]:
            continue
        try:
            model = read(record["sparse"], name)
        except ConfigError:
            continue
        assert any(cache.spec != "encoder_only" for cache in model.caches), name


# --- whatever a file may hold --------------------------------------------------------------------
STRANGE: tuple[Any, ...] = ("x", -1, 2**63, 1.5, [None], {"a": 1}, True, 0, [[]], {})


def mutated(raw: dict[str, Any], position: int, value: Any) -> dict[str, Any]:
    """The file with one value of its text part replaced."""
    part = next((v for k, v in raw.items() if k == "text_config"), raw)
    keys = sorted(key for key in part if key != "model_type")
    changed = part | {keys[position % len(keys)]: value} if keys else part
    return changed if part is raw else raw | {"text_config": changed}


def test_a_strange_value_anywhere_is_read_or_refused_by_its_key() -> None:
    for number, name in enumerate(MEASURED[::3]):
        for turn, value in enumerate(STRANGE):
            form = "full" if (number + turn) % 2 else "sparse"
            raw = mutated(records()[name][form], 7 * number + 3 * turn, value)
            try:
                read(raw, name)
            except ConfigError as error:
                assert all(len(line.splitlines()) == 1 for line in error.lines()), name


# --- whose tie_word_embeddings a class obeys ---
# Those of UNCOUNTED, and classes that unshare more than the head where nothing is tied (Zamba 2 its
# blocks, Florence 2 its encoder's table); Qwen 2.5 Omni was built with its talker.
UNTIED_OTHERWISE = UNCOUNTED | {"zamba2", "florence2", "qwen2_5_omni"}


def with_ties(name: str, whole: bool | None, text: bool | None) -> dict[str, Any]:
    """The tiny file of a type with the key in either place."""
    key, raw = "tie_word_embeddings", dict(records()[name]["sparse"])
    if whole is not None:
        raw[key] = whole
    if text is not None:
        part = facts_of(name).text
        assert part is not None
        raw[part[0]] = {**raw[part[0]], key: text}
    return raw


def miscounted(names: list[str]) -> list[tuple[Any, ...]]:
    found = []
    for name in names:
        for whole, text, parts in ties()[name]:
            model = read(with_ties(name, whole, text), name)
            own = (model.parameter_count or 0) - model.tower_parameters
            if own != parameters({"parameters": parts}):
                found.append((name, whole, text))
    return found


def tied_types() -> list[str]:
    """Types of which a row counts the weights."""
    rows = {name: families().get(records()[name]["text_type"]) for name in ties()}
    counted = {name for name, row in rows.items() if row is not None and row.weights}
    return sorted(counted - UNTIED_OTHERWISE)


@pytest.mark.parametrize(
    "name", ["llama4", "molmo2", "paddleocr_vl", "shieldgemma2", "kimi_linear"]
)
def test_a_head_is_tied_where_its_class_ties_it_whatever_the_file_says(name: str) -> None:
    assert not miscounted([name])


@pytest.mark.full
def test_the_key_is_obeyed_in_the_place_where_its_class_reads_it() -> None:
    assert not miscounted(tied_types())
    assert len(tied_types()) >= 200
