"""Rows of KV blocks (docs/kv-cache.md) in Triton: what attention kernels read the cache with.

Some tokens of a block, a vector of numbers below 32, are decoded to a tile of them by D channels,
padded to a power of two. Nothing outside of the block is read, whatever its bytes are, and nothing
at all where `ok` is false. Formats of dense codes have VALUES and `words` of decode_codes.
"""

import triton
import triton.language as tl

BITS = {
    "fp32": 32,
    "fp16": 16,
    "bf16": 16,
    "fp8_e4m3": 8,
    "int8": 8,
    "int4": 4,
    "int3": 3,
    "int2": 2,
}


@triton.constexpr_function
def value_bits(values):
    return BITS[values]


@triton.constexpr_function
def float_pointer(values):
    types = {"fp32": tl.float32, "fp16": tl.float16, "bf16": tl.bfloat16}
    return tl.pointer_type(types[values])


@triton.constexpr_function
def values_at(D, STORED):
    """Bytes before the values: the bitmap, which dense blocks (STORED 0) do not have."""
    return 4 * D if STORED else 0


@triton.constexpr_function
def is_code(VALUES):
    return ":" in VALUES


@triton.constexpr_function
def code_bytes(VALUES):
    """Bytes of a row of dense codes."""
    return int(VALUES.split(":")[1].split("+")[0])


@triton.constexpr_function
def has_third(VALUES):
    """Whether some dense codes have 3 bits."""
    return VALUES.endswith("+third")


@triton.constexpr_function
def is_fp8(VALUES):
    return VALUES.startswith("fp8")


@triton.constexpr_function
def scales_at(D, STORED, VALUES):
    if ":" in VALUES:
        return 32 * int(VALUES.split(":")[1].split("+")[0])
    return (4 * D if STORED else 0) + (STORED or D) * 4 * BITS[VALUES]


@triton.constexpr_function
def padded(D):
    """The width of a tile; 16 is the least that tl.dot takes."""
    return max(triton.next_power_of_2(D), 16)


@triton.jit
def load_halves(block, at, mask):
    """Float16 numbers `at` these halves of a block, as float32."""
    return tl.load(block.to(tl.pointer_type(tl.float16)) + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def count_bits(byte):
    """Ones in each of some bytes; Triton has no population count that the interpreter knows."""
    pairs = byte - ((byte >> 1) & 0x55)
    fours = (pairs & 0x33) + ((pairs >> 2) & 0x33)
    return (fours + (fours >> 4)) & 15


@triton.jit
def e4m3_to_float(code):
    """float32 of e4m3 codes: as float16 they are 2^-8 of themselves, subnormals included.

    Integer arithmetic, because sm_80 has no such conversion.
    """
    half = (((code & 0x80) << 8) | ((code & 0x7F) << 7)).to(tl.uint16).to(tl.float16, bitcast=True)
    return tl.where((code & 0x7F) == 0x7F, float("nan"), half.to(tl.float32) * 256.0)


@triton.jit
def load_codes(block, row, i, mask, VALUES: tl.constexpr, SIGNED: tl.constexpr):
    """Code i of the 8 of each row of 8, as float32."""
    BITS: tl.constexpr = value_bits(VALUES)
    byte = i * BITS // 8
    at = (row * BITS + byte).to(tl.int32)
    code = tl.load(block + at, mask=mask, other=0).to(tl.int32)
    if BITS == 3:  # may lie across two of the three bytes
        code |= tl.load(block + at + 1, mask=mask & (byte < 2), other=0).to(tl.int32) << 8
    if BITS < 8:
        code = (code >> (i * BITS % 8).to(tl.int32)) & (2**BITS - 1)
    if SIGNED and VALUES != "fp8_e4m3":
        code = (code ^ 2 ** (BITS - 1)) - 2 ** (BITS - 1)
    return e4m3_to_float(code) if VALUES == "fp8_e4m3" else code.to(tl.float32)


@triton.jit
def load_values(block, token, rank, mask, VALUES: tl.constexpr, SIGNED: tl.constexpr):
    """The stored values number `rank` of each token, without scales; zero where not `mask`.

    block: pointer to the values. token and rank, unsigned, broadcast to the shape of the result.
    """
    row = rank // 8 * 32 + token
    i = rank % 8
    if value_bits(VALUES) >= 16:
        # Signed: unsigned offsets would be made 64 bits wide, and take twice the registers.
        at = (row * 8 + i).to(tl.int32)
        x = tl.load(block.to(float_pointer(VALUES)) + at, mask=mask, other=0.0)
    else:
        x = load_codes(block, row, i, mask, VALUES, SIGNED)
    return x


@triton.jit
def load_dense(block, token, ok, D: tl.constexpr, VALUES: tl.constexpr, SIGNED: tl.constexpr):
    """All values of some tokens, [tokens, padded(D)]."""
    channel = tl.arange(0, padded(D)).to(tl.uint32)[None, :]
    token = token.to(tl.uint32)[:, None]
    return load_values(block, token, channel, ok & (channel < D), VALUES, SIGNED)


@triton.jit
def load_field(block, token, word, mask, VALUES: tl.constexpr):
    """The bytes that channels of some tokens are in, shifted: their field is lowest."""
    at = token * 16
    if code_bytes(VALUES) % 16 != 0:
        single = token // 16 * 128 + token % 8 * 16 + token // 8 % 2
        at = tl.where((word >> 13) & 1 != 0, single, at)
    byte = tl.load(block + (at + (word & 0x1FFF)), mask=mask, other=0).to(tl.int32)
    return byte >> ((word >> 14) & 7)


@triton.jit
def load_dense_codes(block, token, words, ok, D: tl.constexpr, VALUES: tl.constexpr):
    """All codes of some tokens, [tokens, padded(D)]; zero where a channel has no bits."""
    # Words depend on `ok`, or all that follows from them would be kept in registers between blocks.
    channel = tl.arange(0, padded(D))
    inside = ok & (channel < D)
    word = tl.load(words + channel, mask=inside, other=0)[None, :]
    token = token[:, None]
    width = (word >> 17) & 15
    code = load_field(block, token, word, width > 0, VALUES) & ((1 << width) - 1)
    if has_third(VALUES):
        other = tl.load(words + D + channel, mask=inside, other=0)[None, :]
        third = load_field(block, token, other, other >> 17 != 0, VALUES)
        code |= (third & 1) << 2
    if is_fp8(VALUES):
        x = e4m3_to_float(code)
    else:
        x = code.to(tl.float32) - ((word >> 21) & 511).to(tl.float32) * 0.5
    return x


@triton.jit
def load_sparse(
    block, token, ok, D: tl.constexpr, STORED: tl.constexpr, VALUES: tl.constexpr,
    SIGNED: tl.constexpr,
):  # fmt: skip
    """Kept values of some tokens and whether each was kept, [tokens, padded(D)].

    A value's rank is the ones before it in its byte of the bitmap and in the bytes before that.
    """
    WIDTH: tl.constexpr = padded(D)
    token = token.to(tl.uint32)
    column = tl.arange(0, WIDTH // 8).to(tl.uint32)[None, :]
    at = (token[:, None] * (D // 8) + column).to(tl.int32)
    byte = tl.load(block + at, mask=ok & (column < D // 8), other=0).to(tl.int32)
    count = count_bits(byte)
    before = tl.cumsum(count, axis=1) - count
    bit = tl.arange(0, 8)[None, None, :]
    kept = ((byte[:, :, None] >> bit) & 1) != 0
    rank = before[:, :, None] + count_bits(byte[:, :, None] & ((1 << bit) - 1))
    rank = tl.minimum(rank, STORED - 1).to(tl.uint32)  # a slot in disuse may have any bitmap
    values = load_values(
        block + values_at(D, STORED), token[:, None, None], rank, kept, VALUES, SIGNED
    )
    shape: tl.constexpr = (token.shape[0], WIDTH)
    return tl.reshape(values, shape), tl.reshape(kept, shape)


@triton.jit
def load_row_scales(block, token, ok, D: tl.constexpr, STORED: tl.constexpr, VALUES: tl.constexpr):
    """The scales of some tokens, where every token has one."""
    return load_halves(block, scales_at(D, STORED, VALUES) // 2 + token, ok & (token < 32))


@triton.jit
def scale_by_channel(x, block, ok, AT: tl.constexpr, D: tl.constexpr):
    """code * scale + minimum with those of each channel, which are `AT` bytes into the block."""
    channel = tl.arange(0, padded(D))
    scale = load_halves(block, AT // 2 + channel, ok & (channel < D))
    minimum = load_halves(block, AT // 2 + D + channel, ok & (channel < D))
    return x * scale[None, :] + minimum[None, :]


@triton.jit
def scale_by_group(x, block, token, ok, AT: tl.constexpr, D: tl.constexpr):
    """The same with those of 32 channels of a token."""
    WIDTH: tl.constexpr = padded(D)
    group = tl.arange(0, WIDTH // 32)[None, :]
    at = AT // 2 + group * 64 + token[:, None]
    scale = load_halves(block, at, ok & (group < D // 32))
    minimum = load_halves(block, at + 32, ok & (group < D // 32))
    shape: tl.constexpr = (token.shape[0], WIDTH // 32, 32)
    x = tl.reshape(x, shape) * scale[:, :, None] + minimum[:, :, None]
    return tl.reshape(x, (token.shape[0], WIDTH))


@triton.jit
def load_rows(
    block, token, words, ok, D: tl.constexpr, STORED: tl.constexpr, VALUES: tl.constexpr,
    SCALES: tl.constexpr, BY_ROW: tl.constexpr,
):  # fmt: skip
    """Rows of some tokens, [tokens, padded(D)]; scales of rows are left out unless BY_ROW.

    block: pointer to its first byte, uint8. STORED: values per row of a sparse block, 0 for a dense
    one. VALUES, SCALES: as in BlockFormat, but for codes of dense rows. Padding is zero, or
    anything where scales are by row.
    """
    SIGNED: tl.constexpr = SCALES == "row"
    AT: tl.constexpr = scales_at(D, STORED, VALUES)
    if STORED:
        x, kept = load_sparse(block, token, ok, D, STORED, VALUES, SIGNED)
    elif is_code(VALUES):
        x = load_dense_codes(block, token, words, ok, D, VALUES)
    else:
        x = load_dense(block, token, ok, D, VALUES, SIGNED)
    if SCALES == "channel":
        x = scale_by_channel(x, block, ok, AT, D)
    elif SCALES == "group":
        x = scale_by_group(x, block, token, ok, AT, D)
    elif SCALES == "row" and BY_ROW:
        x = x * load_row_scales(block, token, ok, D, STORED, VALUES)[:, None]
    if STORED and (SCALES == "channel" or (SCALES == "row" and BY_ROW)):
        x = tl.where(kept, x, 0.0)
    return x
