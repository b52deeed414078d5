"""Faults in softmax, the norms, lines and the row buffer, and a design that has all of them."""

from mutants import Mutant, no_reset, zeroed

from chop.hw.arith.golden import Fixed
from chop.hw.design.samples import BYTE, COUNT, WIDE, codes, stream
from chop.hw.library.components import LayerNorm, Piecewise, RmsNorm, Softmax
from chop.hw.library.fixed_norm import Affine
from chop.hw.sim.component_check import bench_design

PART = Fixed(10, 9)

SOFTMAX = [
    Mutant(
        "the smallest is taken for the largest",
        "fixed_softmax",
        "> largest[lane*WIDTH+:WIDTH]",
        "< largest[lane*WIDTH+:WIDTH]",
    ),
    Mutant("a maximum goes on", "fixed_softmax", "max_first_q", "1'b0", "(max_first_q"),
    Mutant("a masked maximum", "fixed_softmax", "keep[lane]", "1'b1", "if (keep[lane]"),
    Mutant(
        "a masked element has a part",
        "fixed_softmax",
        "late_keep_q[lane]",
        "1'b1",
        "= late_keep_q[lane]",
    ),
    Mutant(
        "a masked product has a part",
        "fixed_softmax",
        "product_keep_q[lane]",
        "1'b1",
        "= product_keep_q[lane]",
    ),
    Mutant("signs are not turned", "fixed_softmax", "WIDTH'(DATA_IN_0_IS_SIGNED)", "WIDTH'(0)"),
    Mutant("far elements begin again", "fixed_softmax", "far[15:8] == '0", "1'b1"),
    Mutant(
        "the fine table has other bits",
        "fixed_softmax",
        "far_q[7:0]",
        "far_q[8:1]",
        "fine_entries[far_q[7:0]",
    ),
    Mutant("the product is not rounded", "fixed_softmax", "33'h8000", "33'h0"),
    Mutant("a sum goes on", "fixed_softmax", "sum_first_q", "1'b0", "sum_q <= sum_first_q"),
    Mutant(
        "the first part is left out",
        "fixed_softmax",
        "SUM_WIDTH'(exps[lane*EXP_WIDTH+:EXP_WIDTH])",
        "lane == 0 ? '0 : SUM_WIDTH'(exps[lane*EXP_WIDTH+:EXP_WIDTH])",
    ),
    Mutant("another reciprocal", "fixed_softmax", "mantissa_0_q[15:8]", "mantissa_0_q[14:7]"),
    Mutant(
        "no Newton step of the reciprocal",
        "fixed_softmax",
        "18'((34'h2_0000_0000 - late_one_q) >> 15)",
        "18'h20000",
    ),
    Mutant("a mask is taken alone", "fixed_softmax", "max_enable && data_in_0_valid", "max_enable"),
    Mutant(
        "a row does not wait for its mask",
        "fixed_softmax",
        "data_in_1_valid",
        "1'b1",
        "(!HAS_MASK || data_in_1_valid",
    ),
]

NORM = [
    Mutant("the mean stays", "fixed_norm", "C_WIDTH'($signed(held_sum))", "C_WIDTH'(0)"),
    Mutant(
        "the squared sum stays", "fixed_norm", "size_squares_q - squared_sum_q", "size_squares_q"
    ),
    Mutant("no eps", "fixed_norm", "EPS", "64'd0", "<< GUARD) + EPS"),
    Mutant("no guard bits", "fixed_norm", "64'(q_q) << GUARD", "64'(q_q)"),
    Mutant(
        "the root of an even place",
        "fixed_norm",
        "mantissa_0_q[17]",
        "1'b0",
        "roots[{mantissa_0_q[17]",
    ),
    Mutant(
        "other bits of an odd mantissa", "fixed_norm", "mantissa_0_q[16:10]", "mantissa_0_q[15:9]"
    ),
    Mutant(
        "no Newton step of the root",
        "fixed_norm",
        "20'((36'hC_0000_0000 - near_one_q) >> 16)",
        "20'h80000",
    ),
    Mutant("the shift is one too few", "fixed_norm", "product_q >>> 2", "product_q >>> 1"),
    Mutant(
        "the shift of the next row",
        "fixed_norm",
        "c_shift_q",
        "held_shift",
        "part_shift_q    <= c_shift_q",
    ),
    Mutant("the root of the next row", "fixed_norm", "c_r_q[R_WIDTH-2:0]", "held_r[R_WIDTH-2:0]"),
    Mutant("the highest bit of a root is left out", "fixed_norm", "c_r_q[R_WIDTH-1]", "1'b0"),
    Mutant(
        "the upper part of z has no sign",
        "fixed_norm",
        "z_q[Z_WIDTH-1]",
        "1'b0",
        "top = z_q[Z_WIDTH-1]",
    ),
    Mutant(
        "the weight has no sign",
        "fixed_norm",
        "EXACT_WIDTH'(w_q)",
        "EXACT_WIDTH'($unsigned(w_q))",
    ),
    Mutant("the bias is left out", "fixed_norm", "b", "EXACT_WIDTH'(0)", "taken_bias_q <= b"),
    Mutant(
        "the bias of the next beat", "fixed_norm", "parts_bias_q", "z_bias_q", "<= parts_bias_q"
    ),
    Mutant("no upper part of a product", "fixed_norm", "EXACT_WIDTH'(high_q)", "EXACT_WIDTH'(0)"),
    Mutant("no upper part of a root", "fixed_norm", "r_top_q", "19'd0", "R_WIDTH'(r_top_q"),
    Mutant("a middle shift is not done", "fixed_norm", "middle << (2 << level)", "middle"),
    Mutant("a fine shift is not done", "fixed_norm", "fine << (2 << level)", "fine"),
    Mutant("squares go on", "fixed_norm", "first_q[1]", "1'b0", "squares_q <= first_q[1]"),
    Mutant("sums go on", "fixed_norm", "first_q[1]", "1'b0", "sum_q     <= first_q[1]"),
    Mutant(
        "constants run ahead",
        "fixed_norm",
        "product_valid_q && skid_ready && (!HAS_BIAS || bias_valid)",
        "skid_ready && (!HAS_BIAS || bias_valid)",
    ),
    Mutant(
        "the sum is of a row before",
        "fixed_norm",
        "sums_q[15*SUM_WIDTH+:SUM_WIDTH]",
        "SUM_WIDTH'(sum_q)",
    ),
]

LINES = [
    Mutant("a line is flat", "fixed_piecewise", " + WIDE'(product_q)", ""),
    Mutant(
        "a base is early",
        "fixed_piecewise",
        "$signed(base_q)",
        "$signed(late_line_q[BASE_WIDTH-1:0])",
    ),
    Mutant(
        "the next line",
        "fixed_piecewise",
        "data_in_0[lane*IN_WIDTH+LOW_BITS+:HIGH_BITS]",
        "HIGH_BITS'(data_in_0[lane*IN_WIDTH+LOW_BITS+:HIGH_BITS] + 1'b1)",
    ),
    Mutant(
        "a slope has no sign",
        "fixed_piecewise",
        "$signed(late_line_q[LINE_WIDTH-1:BASE_WIDTH])",
        "$signed({1'b0, late_line_q[LINE_WIDTH-1:BASE_WIDTH]})",
    ),
    Mutant(
        "a line is lost under a stall",
        "fixed_piecewise",
        "exact_valid_q   <= product_valid_q;",
        "exact_valid_q   <= product_valid_q && data_out_0_ready;",
    ),
    *no_reset(
        "fixed_piecewise",
        zeroed("line_valid_q", "    ", "1'b0"),
        zeroed("late_valid_q", "    ", "1'b0"),
        zeroed("product_valid_q", " ", "1'b0"),
        zeroed("exact_valid_q", "   ", "1'b0"),
    ),
]

BUFFER = [
    Mutant("a full row buffer takes more", "row_buffer", "level_q != LEVEL_WIDTH'(SLOTS)", "1'b1"),
    Mutant("a row does not wait for its last beat", "row_buffer", "rows_q != '0", "level_q != '0"),
    Mutant("a row stays", "row_buffer", "leaves && !ends", "1'b0"),
    Mutant("a row that comes while one leaves counts", "row_buffer", "ends && !leaves", "ends"),
    Mutant(
        "a row ends one beat early",
        "row_buffer",
        "beat_in_q == BEAT_WIDTH'(BEATS - 1)",
        "beat_in_q == BEAT_WIDTH'(BEATS - 2 + 32'(BEATS == 1))",
    ),
    Mutant(
        "a row leaves one beat early",
        "row_buffer",
        "beat_out_q == BEAT_WIDTH'(BEATS - 1)",
        "beat_out_q == BEAT_WIDTH'(BEATS - 2 + 32'(BEATS == 1))",
    ),
    Mutant(
        "rows are written past the end",
        "row_buffer",
        "write_q == SLOT_WIDTH'(SLOTS - 1)",
        "1'b0",
        "write_q   <= write_q == SLOT_WIDTH'(SLOTS - 1)",
    ),
    Mutant(
        "rows are read past the end",
        "row_buffer",
        "read_q == SLOT_WIDTH'(SLOTS - 1)",
        "1'b0",
        "read_q     <= read_q == SLOT_WIDTH'(SLOTS - 1)",
    ),
    Mutant(
        "numbers share a place",
        "row_buffer",
        "scalar_write_q <= !scalar_write_q;",
        "",
    ),
    Mutant("the number of a row stays", "row_buffer", "scalar_read_q <= !scalar_read_q;", ""),
    Mutant("a beat that comes while one leaves is counted", "row_buffer", "load && !issue", "load"),
    Mutant(
        "the last slot of a row is not used",
        "row_buffer",
        "level_q != LEVEL_WIDTH'(SLOTS)",
        "level_q < LEVEL_WIDTH'(SLOTS - 1)",
    ),
    Mutant(
        "a row moves on under a stall", "row_buffer", "enable", "1'b1", "issue           = enable"
    ),
    *no_reset(
        "row_buffer",
        zeroed("data_out_0_valid", " ", "1'b0"),
        zeroed("write_q", "          "),
        zeroed("read_q", "           "),
        zeroed("level_q", "          "),
        zeroed("beat_in_q", "        "),
        zeroed("beat_out_q", "       "),
        zeroed("scalar_write_q", "   ", "1'b0"),
        zeroed("scalar_read_q", "    ", "1'b0"),
        zeroed("rows_q", "           "),
    ),
]

CONTROL = [
    Mutant(
        "a beat is taken while all is full",
        "fixed_norm",
        "sum_enable",
        "1'b1",
        "data_in_0_ready = sum_enable",
    ),
    Mutant(
        "a sum moves on under a stall",
        "fixed_norm",
        "sum_enable",
        "1'b1",
        "if (sum_enable) begin\n      line_q",
    ),
    Mutant(
        "a root moves on under a stall",
        "fixed_norm",
        "sum_enable",
        "1'b1",
        "if (sum_enable) begin\n      late_sum_q",
    ),
    Mutant(
        "exponentials are one beat late",
        "fixed_softmax",
        "exps_q[(DELAY-1)*LANES*EXP_WIDTH+:LANES*EXP_WIDTH]",
        "exps_q[(DELAY-2)*LANES*EXP_WIDTH+:LANES*EXP_WIDTH]",
    ),
    Mutant(
        "a reciprocal moves on under a stall",
        "fixed_softmax",
        "exp_enable",
        "1'b1",
        "if (exp_enable) begin\n      places_q",
    ),
    *no_reset(
        "fixed_softmax",
        zeroed("max_beat_q", "    "),
        zeroed("max_1_valid_q", " ", "1'b0"),
        zeroed("max_2_valid_q", " ", "1'b0"),
        zeroed("sum_beat_q", "   "),
        zeroed("exps_valid_q"),
        zeroed("far_valid_q", "  ", "1'b0"),
        zeroed("read_valid_q", " ", "1'b0"),
        zeroed("late_valid_q", " ", "1'b0"),
        ("product_valid_q", "if (rst) product_valid_q <= 1'b0;", ""),
        zeroed("products_valid_q", "      ", "1'b0", before="\n      "),
        zeroed("late_products_valid_q", " ", "1'b0"),
    ),
    *no_reset(
        "fixed_norm",
        zeroed("valid_q", " ", before="if (rst) begin\n      "),
        zeroed("beat_q", "  "),
        zeroed("c_valid_q", "       ", "1'b0"),
        zeroed("part_valid_q", "    ", "1'b0"),
        zeroed("product_valid_q", " ", "1'b0"),
        zeroed("shifted_valid_q", " ", "1'b0"),
        zeroed("z_valid_q", "       ", "1'b0"),
        zeroed("parts_valid_q", "   ", "1'b0"),
        zeroed("weighed_valid_q", " ", "1'b0"),
        zeroed("exact_valid_q", "   ", "1'b0"),
    ),
]

ROW_MUTANTS = [*SOFTMAX, *NORM, *LINES, *BUFFER, *CONTROL]


def rows():
    """Every kind of component that has rows or lines, each between its own ports."""
    affine = Affine(codes(BYTE, 6), BYTE, codes(BYTE, 6, seed=8), BYTE)
    plain = Affine(codes(BYTE, 8), BYTE)
    return bench_design(
        [
            Softmax(stream(3, 6, lanes=2), PART, has_mask=True),
            Softmax(stream(2, 4, number=WIDE), Fixed(16, 15), has_mask=True),
            Softmax(stream(3, 3, lanes=3, number=Fixed(10, 2)), PART),
            LayerNorm(stream(3, 6, lanes=2), affine, Fixed(14, 9), eps=0.25),
            LayerNorm(stream(4, 6, lanes=6, number=COUNT), affine, BYTE),
            RmsNorm(stream(2, 8, number=Fixed(4, 2)), plain, Fixed(12, 8)),
            next(c for c in Piecewise.cases() if c.source.lanes == 2),
        ]
    )
