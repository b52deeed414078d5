"""Faults in the casts to and from MXINT and in products of blocks, and a design that has them."""

from mutants import Mutant, no_reset, zeroed

from chop.hw.arith.golden import Fixed
from chop.hw.arith.mxint import on_wire
from chop.hw.design.samples import BYTE, COUNT, stream
from chop.hw.design.stream import Stream
from chop.hw.library.components import BlockLinear, BlockMatmul, FromMxint, ToMxint
from chop.hw.library.fixed_linear import sample_blocks
from chop.hw.sim.component_check import bench_design
from chop.nn.quantizers import MXInt

CAST = "fixed_to_mxint"
TO_BLOCKS = [
    Mutant("magnitudes keep their sign", CAST, "-data_in_0[lane*WIDTH+:WIDTH]", "'0"),
    Mutant(
        "an unsigned number has a sign",
        CAST,
        "DATA_IN_0_IS_SIGNED",
        "1'b1",
        "seen |= DATA_IN_0_IS_SIGNED",
    ),
    Mutant("a block sees the one before", CAST, "beat_in_q == '0 ? '0 : seen_q", "seen_q"),
    Mutant("a block sees its last beat alone", CAST, "beat_in_q == '0 ? '0 : seen_q", "'0"),
    Mutant(
        "the last block is as long as others",
        CAST,
        "BEAT_WIDTH'(TAIL - 1)",
        "BEAT_WIDTH'(BEATS - 1)",
        "last_in  = block_in_q == BLOCK_WIDTH'(BLOCKS - 1)\n      ? BEAT_WIDTH'(TAIL - 1)",
    ),
    Mutant(
        "the last block leaves as others",
        CAST,
        "BEAT_WIDTH'(TAIL - 1)",
        "BEAT_WIDTH'(BEATS - 1)",
        "last_out = block_out_q == BLOCK_WIDTH'(BLOCKS - 1)\n      ? BEAT_WIDTH'(TAIL - 1)",
    ),
    Mutant("bits are kept before the block ends", CAST, "ends", "load", "if (ends) bits_q"),
    Mutant(
        "the exponent is one too low",
        CAST,
        "EXPONENT'(place - LOWEST)",
        "EXPONENT'(place - LOWEST - 1)",
    ),
    Mutant("the lowest bit has an exponent", CAST, "place > LOWEST", "place >= LOWEST - 1"),
    Mutant("exponents go beyond the last", CAST, "place > HIGHEST", "1'b0"),
    Mutant("elements are not shifted", CAST, "EXPONENT'(TOP) - exponent_q", "EXPONENT'(0)"),
    Mutant(
        "elements are shifted by the exponent", CAST, "EXPONENT'(TOP) - exponent_q", "exponent_q"
    ),
    Mutant(
        "the exponent of the next beat",
        CAST,
        "exponent_q",
        "exponent",
        "shifted_exponent_q <= exponent_q",
    ),
    Mutant(
        "a shifted element has no sign",
        CAST,
        "DATA_IN_0_IS_SIGNED",
        "1'b0",
        "sign = DATA_IN_0_IS_SIGNED",
    ),
    Mutant("a full buffer of blocks takes more", CAST, "level_q != LEVEL_WIDTH'(SLOTS)", "1'b1"),
    Mutant(
        "the last slot of a block is not used",
        CAST,
        "level_q != LEVEL_WIDTH'(SLOTS)",
        "level_q < LEVEL_WIDTH'(SLOTS - 1)",
    ),
    Mutant("a block does not wait for its last beat", CAST, "blocks_q != '0", "level_q != '0"),
    Mutant("a block moves on under a stall", CAST, "enable", "1'b1", "issue           = enable"),
    Mutant("a block stays", CAST, "leaves && !ends", "1'b0"),
    Mutant("a block that comes while one leaves counts", CAST, "ends && !leaves", "ends"),
    Mutant("a beat of a block that comes while one leaves counts", CAST, "load && !issue", "load"),
    Mutant("bits of blocks share a place", CAST, "bits_write_q <= !bits_write_q;", ""),
    Mutant("the bits of a block stay", CAST, "bits_read_q <= !bits_read_q;", ""),
    Mutant(
        "blocks are written past the end",
        CAST,
        "write_q == SLOT_WIDTH'(SLOTS - 1)",
        "1'b0",
        "write_q   <= write_q == SLOT_WIDTH'(SLOTS - 1)",
    ),
    Mutant(
        "blocks are read past the end",
        CAST,
        "read_q == SLOT_WIDTH'(SLOTS - 1)",
        "1'b0",
        "read_q     <= read_q == SLOT_WIDTH'(SLOTS - 1)",
    ),
    Mutant(
        "exponents move on under a stall", CAST, "enable", "1'b1", "if (enable) begin\n      beat_q"
    ),
    Mutant(
        "shifted elements move on under a stall", CAST, "enable", "1'b1", "if (enable) shifted_q"
    ),
    *no_reset(
        CAST,
        zeroed("write_q", "         "),
        zeroed("read_q", "          "),
        zeroed("level_q", "         "),
        zeroed("beat_in_q", "       "),
        zeroed("beat_out_q", "      "),
        zeroed("block_in_q", "      "),
        zeroed("block_out_q", "     "),
        zeroed("bits_write_q", "    ", "1'b0"),
        zeroed("bits_read_q", "     ", "1'b0"),
        zeroed("blocks_q", "        "),
        zeroed("beat_valid_q", "    ", "1'b0"),
        zeroed("placed_valid_q", "  ", "1'b0"),
        zeroed("shifted_valid_q", " ", "1'b0"),
    ),
]

BACK = "mxint_to_fixed"
FROM_BLOCKS = [
    Mutant("the exponent is not looked at", BACK, "mantissa <<< exponent", "mantissa"),
    Mutant("the exponent is doubled", BACK, "mantissa <<< exponent", "mantissa <<< exponent <<< 1"),
    Mutant(
        "a mantissa has no sign",
        BACK,
        "$signed(data_in_0[lane*MANTISSA+:MANTISSA])",
        "$signed({1'b0, data_in_0[lane*MANTISSA+:MANTISSA]})",
    ),
    Mutant(
        "another lane's mantissa",
        BACK,
        "$signed(data_in_0[lane*MANTISSA+:MANTISSA])",
        "$signed(data_in_0[0+:MANTISSA])",
    ),
    Mutant(
        "a block is taken while all is full", BACK, "enable", "1'b1", "data_in_0_ready = enable"
    ),
    Mutant("a beat is lost under a stall", BACK, "enable", "1'b1", "if (enable) shifted_valid_q"),
    *no_reset(BACK, ("shifted_valid_q", "if (rst) shifted_valid_q <= 1'b0;", "")),
]

LINEAR = "fixed_linear"
PRODUCTS = [
    Mutant(
        "the exponent of the data is left out",
        LINEAR,
        "SHIFT_WIDTH'(beat >> X_BITS)",
        "SHIFT_WIDTH'(0)",
    ),
    Mutant(
        "the exponent of the weights is left out",
        LINEAR,
        "SHIFT_WIDTH'(weight[lane*WEIGHT_WIDTH+:WEIGHT_WIDTH] >> W_BITS)",
        "SHIFT_WIDTH'(0)",
    ),
    Mutant(
        "all outputs have one exponent",
        LINEAR,
        "weight[lane*WEIGHT_WIDTH+:WEIGHT_WIDTH] >> W_BITS",
        "weight[0+:WEIGHT_WIDTH] >> W_BITS",
    ),
    Mutant(
        "the weights of another output",
        LINEAR,
        "weight[lane*WEIGHT_WIDTH+:W_BITS]",
        "weight[0+:W_BITS]",
    ),
    Mutant(
        "products are shifted when they begin",
        LINEAR,
        "dot_tag[AT+:SHIFT_WIDTH]",
        "tag[AT+:SHIFT_WIDTH]",
    ),
    Mutant(
        "products are not shifted",
        LINEAR,
        "dot_tag[AT+:SHIFT_WIDTH]",
        "SHIFT_WIDTH'(0)",
    ),
    Mutant(
        "a finer bias is not met",
        LINEAR,
        "ACC_FRAC - PRODUCT_FRAC",
        "0",
        "SUM_WIDTH])) <<< (ACC_FRAC - PRODUCT_FRAC",
    ),
    Mutant(
        "the bias is not shifted",
        LINEAR,
        "ACC_FRAC - BIAS_PRECISION_1",
        "0",
        "<<< (ACC_FRAC - BIAS_PRECISION_1",
    ),
    Mutant("half does not ride in with a bias", LINEAR, "HALF", "'0", "BIAS_PRECISION_1)) + HALF"),
    Mutant("half does not ride in", LINEAR, "HALF", "'0", "assign start = HALF"),
    Mutant("a sum of blocks goes on", LINEAR, "sum_first", "1'b0", "(sum_first"),
    Mutant("the bias is taken early", LINEAR, "sum_first", "dot_tag[1]", "(sum_first"),
    Mutant(
        "a bias is taken under a stall",
        LINEAR,
        "skid_ready",
        "1'b1",
        "bias_ready = sum_valid && sum_first && skid_ready",
    ),
    Mutant(
        "a product does not wait for its weight",
        LINEAR,
        "weight_valid",
        "1'b1",
        "issue           = has_operand && weight_valid",
    ),
    Mutant(
        "a result comes with each product",
        LINEAR,
        "sum_valid && sum_last",
        "sum_valid",
    ),
    Mutant("products that are none are added", LINEAR, "enable && sum_valid", "enable"),
    Mutant(
        "a full replay buffer of blocks takes more",
        LINEAR,
        "level_q != LEVEL_WIDTH'(SLOTS)",
        "1'b1",
    ),
    Mutant("blocks are freed in each pass", LINEAR, "issue && is_last_pass", "issue"),
    Mutant(
        "the first block is not read again",
        LINEAR,
        "is_last && !is_last_pass ? base_q : read_next",
        "read_next",
    ),
    Mutant("the base of blocks stays", LINEAR, "base_q <= read_next;", ""),
    Mutant("a block that comes while one is freed counts", LINEAR, "load && !free", "load"),
    *no_reset(
        LINEAR,
        zeroed("write_q", "    "),
        zeroed("read_q", "     "),
        zeroed("base_q", "     "),
        zeroed("level_q", "    "),
        zeroed("in_fold_q", "  "),
        zeroed("out_fold_q"),
        ("shifted_tag_q", "if (rst) shifted_tag_q <= '0;", ""),
        ("acc_done_q", "if (rst) acc_done_q <= 1'b0;", ""),
    ),
]

MXINT_MUTANTS = [*TO_BLOCKS, *FROM_BLOCKS, *PRODUCTS]


def blocks():
    """Every kind of component that has blocks, each between its own ports."""
    wide, eight, four = Fixed(16, 9), MXInt(8, block_size=4), MXInt(4, block_size=2)
    wire, short = on_wire(eight, wide, 10), on_wire(eight, wide, 4)
    fine = sample_blocks(4, 10, MXInt(6, block_size=2), Fixed(12, 24))
    return bench_design(
        [
            ToMxint(stream(2, 12, lanes=2, number=wide), eight),
            ToMxint(stream(2, 10, lanes=2, number=wide), eight),  # the last block is shorter
            ToMxint(stream(3, 6, number=COUNT), MXInt(4, block_size=3)),
            ToMxint(stream(8, number=wide), MXInt(5, exponent_width=3, block_size=4)),
            FromMxint(Stream((2, 10), 2, wire), Fixed(12, 6)),
            FromMxint(Stream((2, 10), 1, wire), Fixed(wire.width, wire.frac_width)),
            BlockLinear(Stream((2, 10), 2, wire), sample_blocks(4, 10, four), BYTE, 2),
            BlockLinear(Stream((4,), 4, short), sample_blocks(6, 4, eight), BYTE, 1),
            BlockLinear(Stream((10,), 1, wire), fine, Fixed(16, 8), 2),
            BlockLinear(Stream((10,), 2, wire), sample_blocks(4, 10, four, None), BYTE, 4),
            BlockMatmul(Stream((2, 3, 10), 2, wire), Stream((2, 4, 10), 2, wire), BYTE, 2),
        ]
    )
