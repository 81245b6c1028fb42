"""memory_map.svg: what is drawn is what plan.json says, byte for byte."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from report_runs import GIB, full, layers_of, mamba, plan_of, profile_of, report_of, sliding

import kvpipe
from kvpipe.errors import DoesNotFit
from kvpipe.front.main import run
from kvpipe.report.accounts import CAUSES, KV_CAUSES, split_bytes
from kvpipe.report.document import plan_document
from kvpipe.report.drawing import BAR_WIDTH, WIDTH
from kvpipe.report.map_style import COLOURS, HATCHED, LIGHT_TEXT, STYLE
from kvpipe.report.memory_map import MOST_ROWS, memory_map
from kvpipe.report.run_input import Headline, ReportInput
from kvpipe.text.strict_json import strict_json

SVG = "{http://www.w3.org/2000/svg}"
PLANS = {
    "llama": plan_of(layers_of((full(), 32)), (GIB,), length=8176),
    "gemma": plan_of(
        layers_of((sliding(1024), 52), (full(), 10)),
        (54 * GIB, 50 * GIB, 54 * GIB),
        length=32768,
        in_flight=8192,
    ),
    "hybrid": plan_of(layers_of((full(64), 5), (mamba(), 23)), (50 * GIB,), length=32001),
    "one layer": plan_of(layers_of((full(1, 1, 80), 1)), (2**20,), length=7),
    "many layers": plan_of(layers_of((full(heads=1), 1000)), (GIB,), length=64),
}


def documents(report: ReportInput) -> tuple[dict, ElementTree.Element]:  # type: ignore[type-arg]
    """The document as a reader of the file gets it, and its parsed drawing."""
    document = json.loads(strict_json(plan_document(report)))
    return document, ElementTree.fromstring(memory_map(document))


def bars(drawing: ElementTree.Element) -> dict[str, ElementTree.Element]:
    return {bar.get("data-name", ""): bar for bar in drawing.iter(f"{SVG}g")}


def drawn_bytes(bar: ElementTree.Element) -> Counter[str]:
    """Class -> bytes as drawn: from the areas of the rectangles, not from their attributes."""
    rects = bar.findall(f"{SVG}rect")
    total = sum(float(r.get("width")) * float(r.get("height")) for r in rects)  # type: ignore[arg-type]
    drawn: Counter[str] = Counter()
    for rect in rects:
        area = float(rect.get("width")) * float(rect.get("height"))  # type: ignore[arg-type]
        kind = rect.get("class", "").split()[0]
        drawn[kind] += area / total * int(bar.get("data-total-bytes"))  # type: ignore[operator,arg-type]
    return drawn


def written_bytes(bar: ElementTree.Element) -> Counter[str]:
    written: Counter[str] = Counter()
    for rect in bar.findall(f"{SVG}rect"):
        written[rect.get("class", "").split()[0]] += int(rect.get("data-bytes", ""))
    return written


@pytest.mark.parametrize("name", PLANS)
def test_in_every_bar_areas_are_proportional_to_bytes_and_add_up(name: str) -> None:
    _, drawing = documents(report_of(PLANS[name]))
    assert len(bars(drawing)) >= 3
    for bar in bars(drawing).values():
        written, drawn = written_bytes(bar), drawn_bytes(bar)
        assert sum(written.values()) == int(bar.get("data-total-bytes", ""))
        for kind, num_bytes in written.items():
            # Widths are written to a millionth of a pixel of 896.
            tolerance = 1e-6 * sum(written.values()) * len(bar.findall(f"{SVG}rect")) / 896
            assert abs(drawn[kind] - num_bytes) <= tolerance + 1, kind


@pytest.mark.parametrize("name", PLANS)
def test_the_bars_show_the_bytes_of_plan_json(name: str) -> None:
    document, drawing = documents(report_of(PLANS[name]))
    account, rank = document["bytes"]["ranks"][0], document["plan"]["ranks"][0]
    drawn = {name: written_bytes(bar) for name, bar in bars(drawing).items()}
    assert sum(drawn["device"].values()) == account["total_bytes"]
    assert drawn["device"]["cache"] == sum(account["peak"][cause] for cause in KV_CAUSES)
    same = account["peak"] == account["steady"]  # then one bar shows both
    assert ("steady" in drawn) is not same
    for load in ("peak", "steady"):
        for cause in KV_CAUSES:
            shown = drawn["peak" if same else load][cause]
            assert shown == account[load][cause], (load, cause)
    blocks = [bar for name, bar in drawn.items() if name.startswith("group")]
    assert blocks
    for bar in blocks:
        assert sum(bar.values()) == rank["bytes_per_block"]


def test_every_layer_of_a_group_is_a_rectangle_with_its_name_and_page() -> None:
    document, drawing = documents(report_of(PLANS["hybrid"]))
    group = document["plan"]["ranks"][0]["groups"][1]
    bar = bars(drawing)["group 1-3"]
    rects = [r for r in bar.findall(f"{SVG}rect") if r.get("class", "").startswith("layer")]
    titles = [(r.find(f"{SVG}title").text or "").partition(":")[0] for r in rects]  # type: ignore[union-attr]
    assert titles == [layer["layer"] for layer in group["layers"]]
    assert {r.get("data-bytes") for r in rects} == {
        str(layer["spec"]["real_page_size_bytes"]) for layer in group["layers"]
    }


def test_rectangles_of_a_bar_touch_and_never_overlap() -> None:
    _, drawing = documents(report_of(PLANS["gemma"]))
    for bar in bars(drawing).values():
        rects = bar.findall(f"{SVG}rect")
        for left, right in zip(rects, rects[1:], strict=False):
            end = float(left.get("x", "")) + float(left.get("width", ""))
            assert abs(end - float(right.get("x", ""))) < 0.001


def test_ranks_that_differ_are_drawn_and_those_alike_are_not_repeated() -> None:
    document, drawing = documents(report_of(PLANS["gemma"]))
    others = [name for name in bars(drawing) if name.startswith("rank")]
    assert others == ["rank 1"]
    drawn = written_bytes(bars(drawing)["rank 1"])
    peak = document["bytes"]["ranks"][1]["peak"]
    assert drawn == Counter({cause: b for cause, b in peak.items() if b})


def test_labels_stay_inside_their_rectangles_and_the_page() -> None:
    """Letters of a 12 px sans are at most 8 px wide on average; headings are free-standing."""
    for plan in PLANS.values():
        _, drawing = documents(report_of(plan))
        height = float(drawing.get("height", ""))
        for bar in bars(drawing).values():
            rects = bar.findall(f"{SVG}rect")
            ends = [float(r.get("x", "")) + float(r.get("width", "")) for r in rects]
            for text in bar.findall(f"{SVG}text"):
                x = float(text.get("x", ""))
                end = min(e for e in ends if e > x)
                assert x + 6.6 * len(text.text or "") <= end + 1, text.text
        for text in drawing.iter(f"{SVG}text"):
            assert 0 < float(text.get("y", "")) < height - 8
            assert 0 <= float(text.get("x", "")) < WIDTH


def test_a_verdict_of_eighty_columns_is_no_wider_than_the_bars() -> None:
    """A letter of a bold sans is at most 0.6 of its size wide, on average."""
    found = re.search(r"\.heading\{font-size:(\d+)px", STYLE)
    assert found and 80 * 0.6 * int(found[1]) <= BAR_WIDTH


def test_the_legend_names_every_cause_that_is_there_and_no_other() -> None:
    document, drawing = documents(report_of(PLANS["hybrid"]))
    account = document["bytes"]["ranks"][0]
    present = [c for c in CAUSES if account["peak"][c] or account["steady"][c]]
    dots = [dot.get("class") for dot in drawing.iter(f"{SVG}circle")]
    assert dots == present
    texts = {text.text for text in drawing.iter(f"{SVG}text")}
    assert {cause.replace("_", " ") for cause in present} <= texts


def test_every_cause_has_a_colour_on_light_and_on_dark_pages() -> None:
    assert set(CAUSES) <= set(COLOURS) | set(HATCHED)
    style = memory_map(plan_document(report_of(PLANS["llama"])))
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    for kind in COLOURS:
        assert f".{kind}{{fill:#" in light and f".{kind}{{fill:#" in dark
    for kind in HATCHED:
        assert f'<pattern id="{kind}"' in style and f".{kind}-line{{stroke:#" in dark


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_contrast_on_every_colour() -> None:
    """4.5 is what WCAG 2.1 asks of body text."""
    svg = memory_map(plan_document(report_of(PLANS["llama"])))
    pages = svg.split("@media (prefers-color-scheme: dark)")
    for page, part in enumerate(pages):
        on_light = re.search(r"\.on-light\{fill:(#\w{6})\}", part).group(1)  # type: ignore[union-attr]
        for kind, pair in COLOURS.items():
            ink = "#ffffff" if kind in LIGHT_TEXT else on_light
            bright, dim = sorted((_luminance(ink), _luminance(pair[page])), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, (kind, page)


def test_names_with_markup_characters_stay_text() -> None:
    head = Headline(model='<b>&"evil"', engine="e", device="<d>", backend="meta")
    _, drawing = documents(report_of(PLANS["llama"], headline=head))
    assert '<b>&"evil"' in [text.text for text in drawing.iter(f"{SVG}text")]


def test_a_model_without_a_cache_and_an_overcommitted_device_are_drawn() -> None:
    plan = PLANS["llama"]
    config = replace(plan.ranks[0].config, num_blocks=1, tensors=(), groups=(), bytes_per_block=0)
    nothing = replace(
        plan, capacity=None, printed=(), ranks=(replace(plan.ranks[0], config=config),)
    )
    document, drawing = documents(report_of(nothing))
    assert sum(written_bytes(bars(drawing)["device"]).values()) == 80 * GIB
    tight = profile_of((GIB,), total=8 * GIB, weights=7 * GIB)
    report = report_of(plan, tight, accounts=split_bytes(plan, tight))
    _, drawing = documents(report)
    assert any("too much" in (text.text or "") for text in drawing.iter(f"{SVG}text"))


def test_the_picture_says_verdict_model_and_command() -> None:
    document, drawing = documents(report_of(PLANS["llama"]))
    words = [element.text for element in drawing.iter(f"{SVG}text")]
    assert words[0] == document["verdict"] and words[1] == document["headline"]["model"]
    with_line = ElementTree.fromstring(memory_map({**document, "serve": "vllm serve M --dtype x"}))
    assert "vllm serve M --dtype x" in [e.text for e in with_line.iter(f"{SVG}text")]


@pytest.mark.parametrize(
    "words",
    [
        ["model=llama", "device=rtx_4090", "scheduler.max_model_len=131072"],
        ["model=llama3_70b", "device=h100_80gb"],  # the weights
        ["model=llama", "device=h100_80gb", "cache.kv_cache_memory_bytes=200GiB"],
    ],
)
def test_what_does_not_fit_is_drawn_with_the_rest_in_red(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run([*words, "backend=meta", "report=none"]) == 1
    (picture,) = tmp_path.rglob("memory_map.svg")
    drawing = ElementTree.fromstring(picture.read_text())
    written = written_bytes(bars(drawing)["device"])
    with pytest.raises(DoesNotFit) as refused:
        kvpipe.run([*words, "backend=meta"])
    demand = refused.value.demand
    assert demand is not None and written["overflow"] == demand.missing_bytes > 0
    assert sum(written.values()) == demand.total_bytes + demand.missing_bytes
    assert sum(b for _, b in demand.parts) == sum(written.values()) - written["not_requested"]
    says = " ".join(text.text or "" for text in drawing.iter(f"{SVG}text"))
    advice = capsys.readouterr().err.splitlines()[1].removeprefix("kvpipe: ")
    assert advice in says and ("planned, and" in advice or "no single change" in advice)


def test_more_than_the_card_has_is_red_to_the_byte() -> None:
    plan = PLANS["llama"]
    tight = profile_of((GIB,), total=8 * GIB, weights=7 * GIB + 5)
    report = report_of(plan, tight, accounts=split_bytes(plan, tight))
    document, drawing = documents(report)
    written = written_bytes(bars(drawing)["device"])
    over = document["bytes"]["ranks"][0]["overcommitted_bytes"]
    assert written["overflow"] == over > 0
    assert sum(written.values()) - over == 8 * GIB


def test_users_that_were_asked_for_and_do_not_run_are_red() -> None:
    document, drawing = documents(replace(report_of(PLANS["llama"]), requests_asked=7))
    cap, page = document["capacity"], document["plan"]["ranks"][0]["bytes_per_block"]
    assert cap["users"] < 7 and cap["blocks_asked"] > cap["usable_blocks"]
    written = written_bytes(bars(drawing)["asked"])
    assert written["payload"] == cap["usable_blocks"] * page
    assert sum(written.values()) == cap["blocks_asked"] * page


def test_ranks_beyond_those_drawn_are_counted() -> None:
    memory = tuple((40 + rank) * GIB for rank in range(MOST_ROWS + 3))
    _, drawing = documents(report_of(plan_of(layers_of((full(), 32)), memory, length=8176)))
    texts = [text.text or "" for text in drawing.iter(f"{SVG}text")]
    assert sum(name.startswith("rank") for name in bars(drawing)) == MOST_ROWS
    assert "and 2 more kinds of ranks, see plan.json" in texts


def test_slots_are_drawn_as_slots_and_kernel_blocks_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ["model=gemma3_27b", "device=h200", "cache.kv_cache_memory_bytes=20GiB"]
    asked += ["scheduler.max_model_len=32768", "backend=meta", "report=none"]
    texts = {}
    for name, more in (("slots", ["layout=flashinfer_nhd"]), ("blocks", ["engine=vllm_0_33"])):
        assert run([*asked, *more, f"hydra.run.dir={name}"]) == 0
        drawing = ElementTree.fromstring((tmp_path / name / "memory_map.svg").read_text())
        texts[name] = [element.text or "" for element in drawing.iter(f"{SVG}text")]
    title = "One slot, 1.25 MiB, as each group fills it: any free slot serves any group"
    assert title in texts["slots"]
    assert not any("any free slot" in text for text in texts["blocks"])
    (split,) = [text for text in texts["slots"] if "kernel blocks" in text]
    assert split.startswith("group 5: sliding, 2 layers, block_size 80 tokens, ")
    assert split.endswith("read as kernel blocks of 16")
