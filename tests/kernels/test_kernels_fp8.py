"""fp8 as stored: bit for bit torch's cast of clamp(x / scale), for every 16-bit number there is."""

from __future__ import annotations

import itertools

import pytest
import torch

from kvpipe.backends.base import Buffer
from kvpipe.backends.host import HostBackend
from kvpipe.backends.kernels.compile import find_compiler
from kvpipe.backends.torch_ import FP8_MAX, TorchBackend
from kvpipe.layouts.base import ArrayView

REFERENCE = TorchBackend()
FORMATS = tuple(FP8_MAX)
ORDINARY_SCALES = (1.0, 0.37, 1 / 3, 2.5, 448.0, 1e-4, 3e-30, 7.1e24, 2.0**-126, 3e38)
NEGATIVE_SCALES = (-1.0, -0.37, -448.0, -(2.0**-126), -0.0)
# Large, ordinary and odd numerators whose quotients fall on and beside rounding boundaries.
LIMITS = (0.0, -0.0, 448.0, 449.0, 464.0, 57344.0, 61440.0, 65504.0, 3.4e38, 1e-45)


def view_of(num_tokens: int, width: int, dtype: str) -> ArrayView:
    return ArrayView(
        layer="layer", array="k", buffer=0, dtype=dtype, per_token=True, offset=0,
        shape=(num_tokens, 1, 1, width), strides=(width, width, width, 1),
    )  # fmt: skip


def stored(backend, numbers: torch.Tensor, dtype: str, scale: float) -> torch.Tensor:
    """numbers [n] through write_kv, as codes [n] on the CPU. Rows of 8 k numbers are converted 8
    at a time, rows of one number one at a time: the last row of an odd count takes the latter."""
    width = 256 if len(numbers) % 256 == 0 else 1
    rows = numbers.view(-1, 1, width)
    view = view_of(len(rows), width, dtype)
    data = torch.zeros(len(numbers), dtype=torch.uint8, device=backend.device)
    slots = torch.arange(len(rows), device=backend.device)
    buffer = Buffer(num_bytes=len(numbers), data=data)
    backend.write_kv(buffer, view, rows.to(backend.device), slots, scale)
    return data.cpu()


def every(dtype: torch.dtype) -> torch.Tensor:
    """All 65,536 numbers of a 16-bit dtype, infinities and every NaN among them."""
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", ORDINARY_SCALES)
def test_every_16_bit_number_is_stored_as_torch_casts_it(backend, source, dtype, scale):
    numbers = every(source)
    wanted = stored(REFERENCE, numbers, dtype, scale)
    assert torch.equal(stored(backend, numbers, dtype, scale), wanted)


def same_codes(got: torch.Tensor, wanted: torch.Tensor, dtype: str) -> bool:
    """Equal, but any NaN equals any NaN: a negative scale turns its sign, in torch it does not."""
    nan = wanted.view(REFERENCE.dtype(dtype)).float().isnan()
    both = got.view(REFERENCE.dtype(dtype)).float().isnan()
    return torch.equal(nan, both) and torch.equal(got[~nan], wanted[~nan])


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", NEGATIVE_SCALES)
def test_a_negative_scale_turns_every_sign(backend, source, dtype, scale):
    numbers = every(source)
    wanted = stored(REFERENCE, numbers, dtype, scale)
    assert same_codes(stored(backend, numbers, dtype, scale), wanted, dtype)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
def test_a_conversion_that_keeps_the_quotients_sign_changes_nothing(monkeypatch):
    """What `cvt.rn.satfinite` of sm_89 and newer does: it puts the sign of what it converts into
    the code, and that is the quotient by |scale|."""
    monkeypatch.setenv("CXXFLAGS", "-O0 -DKV_PAIR_KEEPS_SIGNS")
    as_hardware = HostBackend(HostBackend.Options(name="host", build="exact"))
    for dtype, scale in itertools.product(FORMATS, (1.0, 0.37, *NEGATIVE_SCALES)):
        numbers = every(torch.bfloat16)
        wanted = stored(REFERENCE, numbers, dtype, scale)
        assert same_codes(stored(as_hardware, numbers, dtype, scale), wanted, dtype), scale


@pytest.mark.parametrize("dtype", FORMATS)
def test_numbers_are_stored_one_by_one_as_in_vectors(backend, dtype):
    numbers = every(torch.bfloat16)[1::7]
    wanted = stored(REFERENCE, numbers, dtype, 0.7)
    assert torch.equal(stored(backend, numbers, dtype, 0.7), wanted)


@pytest.mark.parametrize("dtype", FORMATS)
def test_float32_is_divided_as_ieee_divides(backend, dtype):
    """Quotients that lie on a rounding boundary of fp8, one float32 above and one below it."""
    codes = torch.arange(0, 0x7E if dtype == "fp8_e4m3" else 0x7B, dtype=torch.uint8)
    exact = codes.view(REFERENCE.dtype(dtype)).float()
    boundaries = (exact[1:] + exact[:-1]) / 2
    generator = torch.Generator().manual_seed(0)
    for scale in (torch.rand(24, generator=generator) * 4 + 0.01).tolist():
        near = (boundaries * torch.tensor(scale)).view(torch.int32)
        bits = torch.cat([near + step for step in range(-2, 3)])
        limits = torch.tensor(LIMITS)
        numbers = torch.cat([bits.view(torch.float32), -bits.view(torch.float32), limits])
        numbers = torch.cat([numbers, numbers.new_zeros(-len(numbers) % 256)])
        wanted = stored(REFERENCE, numbers, dtype, scale)
        assert torch.equal(stored(backend, numbers, dtype, scale), wanted)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(
    ("scale", "x", "wanted"),
    [
        (0.0, 3.0, "largest"),
        (0.0, -3.0, "-largest"),
        (0.0, 0.0, "nan"),
        (float("inf"), 3.0, 0.0),
        (float("inf"), float("inf"), "nan"),
        (float("nan"), 3.0, "nan"),
        (1.0, float("inf"), "largest"),
        (1.0, float("-inf"), "-largest"),
        (1.0, float("nan"), "nan"),
        (1e-45, 3.0, "largest"),
    ],
)
def test_scales_and_numbers_without_a_quotient(backend, dtype, scale, x, wanted):
    largest = FP8_MAX[dtype]
    numbers = torch.full((256,), x, dtype=torch.float32)
    codes = stored(backend, numbers, dtype, scale)
    got = codes.view(REFERENCE.dtype(dtype)).float()
    expected = {"largest": largest, "-largest": -largest, "nan": float("nan")}.get(wanted, wanted)
    assert torch.equal(got.nan_to_num(-1), torch.full((256,), expected).nan_to_num(-1))
    reference = stored(REFERENCE, numbers, dtype, scale).view(REFERENCE.dtype(dtype)).float()
    assert torch.equal(got.nan_to_num(-1), reference.nan_to_num(-1))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("out", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("width", [256, 1])
def test_every_code_is_read_back_as_torch_reads_it(backend, dtype, out, width):
    data = torch.arange(256, dtype=torch.uint8)
    view = view_of(256 // width, width, dtype)
    table = torch.arange(256 // width, dtype=torch.int32)
    for scale in (1.0, 0.37, 1000.0, 2.0**-20):
        here = Buffer(num_bytes=256, data=data.to(backend.device))
        got = backend.gather(here, view, table, len(table), 1, out, scale).cpu().flatten()
        there = Buffer(num_bytes=256, data=data)
        wanted = REFERENCE.gather(there, view, table, len(table), 1, out, scale).flatten()
        assert torch.equal(got.isnan(), wanted.isnan())
        assert torch.equal(got[~got.isnan()], wanted[~wanted.isnan()])


def test_what_is_written_can_be_read(backend):
    """Round trip: within half a step of fp8 for every number inside its range."""
    numbers = torch.linspace(-400, 400, 1024).bfloat16()
    for dtype, step in (("fp8_e4m3", 2.0**-4), ("fp8_e5m2", 2.0**-3)):
        codes = stored(backend, numbers, dtype, 1.0).to(backend.device)
        view = view_of(4, 256, dtype)
        table = torch.arange(4, dtype=torch.int32)
        read = backend.gather(Buffer(num_bytes=1024, data=codes), view, table, 4, 1, "float32")
        error = (read.cpu().flatten() - numbers.float()).abs()
        assert (error <= numbers.float().abs() * step + 2.0**-9).all()


@pytest.mark.full
@pytest.mark.parametrize("dtype", FORMATS)
def test_random_float32_and_scales_divide_exactly(backend, dtype):
    generator = torch.Generator().manual_seed(1)
    for _, source in itertools.product(range(20), (torch.float32, torch.float16)):
        bits = torch.randint(-(2**31), 2**31, (65536,), generator=generator).to(torch.int32)
        scale = float(2 ** (torch.rand(1, generator=generator) * 60 - 30))
        # Exponents around the scale, so that most quotients are neither 0 nor the maximum.
        mantissa = (bits & 0x007FFFFF | 0x3F800000).view(torch.float32)
        spread = torch.randint(-18, 18, (65536,), generator=generator)
        numbers = (mantissa * 2.0**spread * scale).to(source)
        wanted = stored(REFERENCE, numbers, dtype, scale)
        assert torch.equal(stored(backend, numbers, dtype, scale), wanted)
