"""ReportInput -> the sections of the report, in the order a serving engineer on a bad day needs.

Every figure says how it was obtained: in a column, or in the title of its section.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kvpipe.cache.load import ENDS
from kvpipe.cache.plan import Capacity, Plan, SlotFacts
from kvpipe.report.accounts import CAUSES, RankAccount
from kvpipe.report.derived_notes import all_notes
from kvpipe.report.engine_lines import printed_section
from kvpipe.report.run_input import ReportInput
from kvpipe.report.subslots import block_cell, subslot_lines
from kvpipe.report.verdict import verdict_of
from kvpipe.stages.binding.base import VerifyReport
from kvpipe.stages.profiling.base import MemoryItem, MemoryProfile, RankMemory
from kvpipe.text.figures import count, percent, size
from kvpipe.text.lines import Command, Line, Section


def contents(report: ReportInput) -> list[Section]:
    plan = report.plan
    sections = [_headline(report)]
    if plan.capacity is not None:
        sections += [
            _capacity(plan, plan.capacity, report.accounts, report.profile),
            printed_section(plan, plan.capacity, how_exact(plan, report.profile)),
        ]
        sections += [_groups(plan, plan.capacity)]
    if report.log is not None:
        from kvpipe.report.log_section import log_section

        sections.append(log_section(report.log, len(plan.ranks)))
    sections += _memory(report.profile.ranks)
    sections += _accounts(report.accounts, plan)
    sections += _notes(report)
    sections.append(_end(report))
    sections.append(_serve(report))
    return sections


def _serve(report: ReportInput) -> Section:
    title = "To serve this plan"
    if report.serve:
        return Section(title=title, verbatim=[Command(report.serve)])
    return Section(title=title, paragraphs=[Line(f"none: {report.no_serve}")])


def _headline(report: ReportInput) -> Section:
    head, plan = report.headline, report.plan
    backend = f"backend {head.backend}" + (
        f" ({head.backend_reason})" if head.backend_reason else ""
    )
    lines = [Line(f"device {head.device}, {backend}")]
    if plan.capacity is None:
        lines.append(Line("Nothing to store: no layer of this model keeps a cache.", "good"))
    else:
        verdict = verdict_of(report)
        lines += [Line(verdict.short, verdict.style), Line(verdict.figures)]
    return Section(title=f"kvpipe: {head.model}, engine {head.engine}", paragraphs=lines)


def _capacity(
    plan: Plan, cap: Capacity, accounts: Sequence[RankAccount], profile: MemoryProfile
) -> Section:
    one, null = plan.ranks[0].config.bytes_per_block, plan.num_blocks - cap.usable_blocks
    peak, steady = cap.peak_blocks, cap.steady_blocks
    account, a_rank = accounts[0], ", a rank" if len(plan.ranks) > 1 else ""
    rows = [
        (
            "requests that fit",
            f"{cap.requests_at_peak:,}",
            f"{cap.requests_running:,}",
            f"{cap.requests_steady:,}",
        ),
        (
            f"bytes of each{a_rank}",
            size(cap.peak_bytes),
            size(cap.steady_bytes),
            size(cap.steady_bytes),
        ),
        ("blocks of each", f"{peak:,}", f"{steady:,}", f"{steady:,}"),
        (
            "over its payload",
            _overhead(account.peak),
            _overhead(account.steady),
            _overhead(account.steady),
        ),
    ]
    in_flight = max(0, cap.peak_bytes - cap.steady_bytes)
    paragraphs = [
        f"{count(plan.num_blocks, 'block')} of {size(one)}: {cap.usable_blocks:,} for requests, "
        f"{null} {'null' if null == 1 else 'kept back'}",
        f"longest request: {cap.longest_request:,} tokens, alone in the cache",
        f"a request costs {size(cap.bytes_fixed)} + {size(cap.bytes_per_token)} a token (steady "
        "state, from above)",
        f"at the peak: {ENDS['peak']}, {plan.limits.tokens_in_flight:,} tokens in flight; "
        f"running: {ENDS['running']} ({size(in_flight)} more, once); "
        f"steady: {ENDS['steady']}",
    ]
    if cap.scratch_blocks:
        paragraphs.append(
            "of a prefill chunk windows store what survives it; the rest lies in up to "
            f"{count(cap.scratch_blocks, 'scratch slot')}, in which layers take turns (so the peak "
            "is counted from above)"
        )
    return Section(
        title=f"Capacity ({how_exact(plan, profile)})",
        headers=(f"of {cap.request_len:,} tokens each", "at the peak", "running", "steady"),
        align="lrrr",
        rows=rows,
        paragraphs=[Line(words) for words in paragraphs],
    )


def how_exact(plan: Plan, profile: MemoryProfile) -> str:
    """Computed exactly, but from bytes that may be an estimate."""
    decides = min(range(len(plan.ranks)), key=lambda i: _blocks_of(plan, profile, i))
    kv = profile.ranks[decides].available_kv
    if kv.how in ("exact", "set", "measured"):
        return "exact"
    held = size(plan.ranks[decides].config.size_bytes)
    if kv.low_bytes is None or kv.high_bytes is None:
        return f"exact for {held} of cache, which are {kv.how}"
    return f"exact for {held} of cache, {kv.how}: {size(kv.low_bytes)} to {size(kv.high_bytes)}"


def _blocks_of(plan: Plan, profile: MemoryProfile, rank: int) -> float:
    """Blocks that a rank's own memory would hold: the fewest decide."""
    width = plan.ranks[rank].config.bytes_per_block
    return profile.ranks[rank].available_kv_bytes / width if width else float("inf")


def _overhead(split: Mapping[str, int]) -> str:
    """Bytes that requests hold, as a multiple of the keys, values and states they need."""
    payload = split["payload"] + split["head_replication"]
    held = payload + sum(
        split[cause]
        for cause in (
            "prefill_in_flight",
            "block_tails",
            "window_alignment",
            "padding_layers",
            "page_padding",
        )
    )
    return f"{held / payload:.2f} x" if payload else "-"


def _slots(plan: Plan, facts: SlotFacts, cap: Capacity) -> Iterator[str]:
    """What is promised of equal slots, beside the bound and the plans compared."""
    slot = size(plan.ranks[0].config.bytes_per_block)
    told = f"slots of {slot}, any of them for any group ({facts.rule})"
    if facts.prefix_grain:
        told += f"; prefixes are shared in steps of {count(facts.prefix_grain, 'token')}"
    yield told
    if facts.never_worse_than:
        yield (
            f"no request of up to {cap.request_len:,} tokens, decoding or reading its prompt, "
            f"takes more bytes than under {' or '.join(facts.never_worse_than)}"
        )
    if cap.steady_bytes and facts.bound_bytes:
        others = [
            f"{engine} {num_bytes / facts.bound_bytes:.3f} in {count(tables, 'table')}"
            for engine, tables, num_bytes in facts.compared
        ]
        ours = f"{cap.steady_bytes / facts.bound_bytes:.3f} in {count(len(plan.groups), 'table')}"
        yield f"steady bytes over the fewest there can be: {ours}; {', '.join(others)}"
    yield from subslot_lines(plan)


def _groups(plan: Plan, cap: Capacity) -> Section:
    """Groups that look alike share a row: a hybrid model may have dozens."""
    rows: list[list[str]] = []
    for index, (group, demand) in enumerate(zip(plan.groups, cap.demands, strict=True)):
        own = group.block_spec
        specs = [own.of_layer(name) for name in group.layer_names] or [own]
        pages = sorted({spec.page_size_bytes for spec in specs})
        kinds = " + ".join(sorted({spec.kind for spec in specs}))
        page = size(pages[0]) if len(pages) == 1 else f"{size(pages[0])} - {size(pages[-1])}"
        names = {n for rank in plan.ranks for n in rank.config.groups[index].layer_names}
        row = [kinds, f"{len(names):,}", block_cell(group), page]
        row += [f"{demand.peak_blocks:,}", f"{demand.steady_blocks:,}"]
        if rows and rows[-1][1:] == row:
            rows[-1][0] = f"{rows[-1][0].split('-')[0]}-{index}"
        else:
            rows.append([str(index), *row])
    return Section(
        title=f"Groups (blocks of one request of {cap.request_len:,} tokens)",
        headers=("group", "kind", "layers", "block", "page", "peak", "steady"),
        align="llrrrrr",
        rows=rows,
        paragraphs=_padding(plan),
    )


def _padding(plan: Plan) -> list[Line]:
    if plan.slots is not None and plan.capacity is not None:
        return [Line(words) for words in _slots(plan, plan.slots, plan.capacity)]
    padded = [p for p in plan.padding if p.num_layers]
    if not padded:
        return []
    worst = max(p.percent for p in padded)
    total = sum(p.num_layers for p in padded)
    return [
        Line(f"padding: {count(total, 'layer')} charged and not used, up to {worst:.1f}% of a kind")
    ]


def _memory(ranks: Sequence[RankMemory]) -> Iterator[Section]:
    for number, (rank, alike) in enumerate(_alike(ranks)):
        yield Section(
            title=f"Memory of {_rank_words(rank.rank, alike, len(ranks), poorest=not number)}",
            headers=("", "size", "how", "source"),
            align="lrll",
            rows=[(i.name, size(i.num_bytes), i.how, _source(i)) for i in _items(rank)],
        )


def _items(rank: RankMemory) -> list[MemoryItem]:
    """A budget that was set is both what is requested and what is available: once is enough."""
    return list(dict.fromkeys((rank.total, rank.requested, *rank.charged, rank.available_kv)))


def _source(item: MemoryItem) -> str:
    """Ranges stand beside the best value and are never summed."""
    if item.low_bytes is None or item.high_bytes is None:
        return item.source
    return f"{size(item.low_bytes)} to {size(item.high_bytes)}: {item.source}"


def _alike(ranks: Sequence[RankMemory]) -> list[tuple[RankMemory, int]]:
    """At most three different ranks, the poorest first, and how many ranks are like each."""
    kinds: dict[tuple[int, ...], list[RankMemory]] = {}
    for rank in ranks:
        kinds.setdefault(tuple(item.num_bytes for item in _items(rank)), []).append(rank)
    groups = sorted(kinds.values(), key=lambda group: group[0].available_kv_bytes)
    return [(group[0], len(group)) for group in groups[:3]]


def _rank_words(rank: int, alike: int, num_ranks: int, poorest: bool) -> str:
    if num_ranks == 1:
        return "the device"
    if alike == num_ranks:
        return f"each of {num_ranks} ranks"
    same = f" and {alike - 1} more like it" if alike > 1 else ""
    return f"rank {rank}{same}" + (f", the poorest of {num_ranks}" if poorest else "")


def _accounts(accounts: Sequence[RankAccount], plan: Plan) -> Iterator[Section]:
    """The first rank; every other one is in plan.json."""
    for account in accounts[:1]:
        total = account.total_bytes
        rows = [
            (
                cause.replace("_", " "),
                size(account.peak[cause]),
                percent(account.peak[cause], total),
                size(account.steady[cause]),
                percent(account.steady[cause], total),
            )
            for cause in CAUSES
            if account.peak[cause] or account.steady[cause]
        ]
        rows.append(("total", size(total), "100.0%", size(total), "100.0%"))
        more = len(accounts) > 1
        where = f"rank {account.rank}; the others are in plan.json; " if more else ""
        length = f"{plan.limits.max_model_len:,}"
        loads = f"peak: {count(account.requests_peak, 'request')} of {length} tokens, "
        loads += f"steady: {account.requests_steady:,}"
        yield Section(
            title=f"Where the bytes go ({where}{loads})",
            headers=("cause", "peak", "", "steady", ""),
            align="lrrrr",
            rows=rows,
        )


def _notes(report: ReportInput) -> Iterator[Section]:
    notes = sorted(all_notes(report), key=lambda note: not note.is_warning)
    lines = []
    for note in notes:
        mark, style = ("!", "warning") if note.is_warning else ("-", "")
        knob = f". Knob: {note.knob}" if note.knob else ""
        lines.append(Line(f"{mark} {note.text}{knob}", style))
    if lines:
        yield Section(title="Notes (!: warning)", paragraphs=lines)


def _end(report: ReportInput) -> Section:
    lines = [_proof(report.verify)]
    stages = ", ".join(f"{stage} {_time(s)}" for stage, s in report.timings.items())
    if stages:
        lines.append(Line(f"measured: {stages}", "faint"))
    return Section(title="Self-proof and stages", paragraphs=lines)


def _proof(proof: VerifyReport) -> Line:
    if proof.reason:
        return Line(f"not run: {proof.reason}")
    if proof.summary:
        return Line(proof.summary, "bad" if proof.mismatches else "good")
    injected = "" if proof.inject == "none" else f", with inject={proof.inject}"
    digests = " ".join(digest[:16] for digest in proof.digest.split())
    stored = [(proof.tokens, "token"), (proof.state_pages, "state page")]
    what = " and ".join(count(number, word) for number, word in stored if number)
    words = (
        f"{count(proof.layers, 'layer')}, {what} written through the block manager, read back by "
        f"{'gather' if proof.tokens else 'pack'} and by flat offsets{injected}: "
        f"{proof.mismatches:,} mismatches, digest {digests}"
    )
    if proof.inject != "none" and proof.mismatches:
        return Line(f"{words}. The injected fault shows, as it must", "good")
    return Line(words, "bad" if proof.mismatches else "good")


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
