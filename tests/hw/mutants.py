"""Faults in the RTL, and one design that has all of them built in, chosen by a number in a file.

Each mutant replaces `old` by `new` at the place `at` of a module. The text becomes a choice
between both, so a single build serves every mutant: the file `mutant.mem` says which one is on,
0 for none.
"""

import re
from dataclasses import dataclass

import numpy as np
from designs import BYTE, random_weights, residual_block

from chop.hw.arith.golden import Fixed
from chop.hw.design.stream import Stream
from chop.hw.library.components import (
    AvgPool,
    BatchNorm,
    Concat,
    Conv2d,
    Embedding,
    Fifo,
    Linear,
    Lut,
    Matmul,
    MaxPool,
    Mul,
    Reorder,
    Slice,
)
from chop.hw.streams.builder import Builder


@dataclass(frozen=True)
class Mutant:
    """One fault: in `module`, at the place `at`, its last `old` becomes `new`."""

    what: str
    module: str
    old: str
    new: str
    at: str = ""

    @property
    def is_statement(self):
        return self.old.endswith(";")

    def span(self, text):
        """Where `old` lies; None where the module is written in another way."""
        place = self.at or self.old
        if place not in text:
            return None
        assert text.count(place) == 1, f"{self.what}: {place!r} is not unique"
        start = text.index(place) + place.rindex(self.old)
        return start, start + len(self.old)


def no_reset(module, *registers):
    """For each register a mutant in which reset leaves it alone."""
    return [
        Mutant(f"{module} does not reset {name}", module, statement, "", at)
        for name, statement, at in registers
    ]


def zeroed(name, gap=" ", value="'0", before=""):
    """A reset statement as `no_reset` takes it."""
    statement = f"{name}{gap}<= {value};"
    return name, statement, before + statement


VALUES = [
    Mutant("rounding is floor", "fixed_cast", "floored[0] && !is_tie", "floored[0]"),
    Mutant("half is not added", "fixed_cast", "wide + HALF", "wide", "= wide + HALF"),
    Mutant("half does not ride in", "fixed_linear", "HALF", "'0", "BIAS_PRECISION_1)) + HALF"),
    Mutant(
        "wrong shift",
        "fixed_cast",
        "raised >>> DROPPED",
        "raised >>> (DROPPED - 1)",
        "floored = raised >>> DROPPED",
    ),
    Mutant("saturation wraps", "fixed_cast", "is_in_range", "1'b1", "is_in_range ?"),
    Mutant(
        "saturates to the wrong end",
        "fixed_cast",
        "{sign, {(OUT_WIDTH - 1) {!sign}}}",
        "{!sign, {(OUT_WIDTH - 1) {sign}}}",
    ),
    Mutant(
        "saturates to the wrong end",
        "fixed_cast",
        "sign ? LOWEST : HIGHEST",
        "sign ? HIGHEST : LOWEST",
    ),
    Mutant(
        "unsigned product",
        "fixed_dot_product",
        """product_q <= $signed(data_late[lane*DATA_WIDTH+:DATA_WIDTH])
                * $signed(weight_q[(WAIT-1)*WEIGHT_WIDTH+:WEIGHT_WIDTH]);""",
        """product_q <= $signed(data_late[lane*DATA_WIDTH+:DATA_WIDTH])
                * $unsigned(weight_q[(WAIT-1)*WEIGHT_WIDTH+:WEIGHT_WIDTH]);""",
    ),
    Mutant(
        "unsigned product",
        "fixed_dot_product",
        "product_q <= x * w;",
        "product_q <= x * $unsigned(w);",
    ),
    Mutant(
        "a lane is added twice",
        "fixed_dot_product",
        "SUM_WIDTH'(product_q)",
        "SUM_WIDTH'(product_q) + SUM_WIDTH'(product_q)",
        "+ SUM_WIDTH'(product_q);",
    ),
    Mutant("bias is left out", "fixed_linear", "start", "HALF", "(sum_first ? start :"),
    Mutant("relu keeps the sign", "fixed_relu", "is_negative", "1'b0", "is_negative ?"),
    Mutant("add subtracts", "fixed_arithmetic", "a + b", "a - b", "= a + b;"),
    Mutant("the bias is not added", "fixed_batch_norm", "bias_q <<< BIAS_SHIFT", "'0 & bias_q"),
    Mutant("the first of a window is compared", "fixed_pool", "is_first || is_larger", "is_larger"),
    Mutant(
        "the first of a window is added",
        "fixed_pool",
        "is_first",
        "1'b0",
        "is_first ? x",
    ),
    Mutant(
        "the smallest of a window is taken",
        "fixed_pool",
        "is_first || is_larger",
        "is_first || !is_larger",
    ),
    Mutant(
        "windows at the edge are divided by all of a window",
        "fixed_pool",
        "32'(columns_here) * 32'(rows_here)",
        "DIVISOR",
        "counted      <= DIVISOR_WIDTH'(32'(columns_here) * 32'(rows_here)",
    ),
    Mutant(
        "the quotient has no remainder",
        "fixed_divide",
        "has_remainder || has_lost_q[LATENCY-1]",
        "1'b0",
    ),
    Mutant("mul adds", "fixed_arithmetic", "a * b", "a + b", "= a * b;"),
    Mutant(
        "operands are crossed",
        "top",
        "fc1_weight",
        "{fc1_weight[31:0], fc1_weight[63:32]}",
        ".weight          (fc1_weight)",
    ),
]

ORDER = [
    Mutant(
        "a bias is taken with every beat",
        "fixed_linear",
        "sum_valid && sum_first && skid_ready",
        "sum_valid && skid_ready",
    ),
    Mutant(
        "the accumulator is not restarted",
        "fixed_linear",
        "sum_first",
        "sum_first && sum_last",
        "(sum_first",
    ),
    Mutant(
        "the replay begins at the wrong slot",
        "fixed_linear",
        "is_last && !is_last_pass ? base_q : read_next",
        "read_next",
    ),
    Mutant(
        "one pass too few",
        "fixed_linear",
        "OUT_FOLD_WIDTH'(OUT_FOLDS - 1)",
        "OUT_FOLD_WIDTH'(OUT_FOLDS - 2 + 32'(OUT_FOLDS == 1))",
    ),
    Mutant(
        "the vector is freed too early",
        "fixed_linear",
        "is_last_pass",
        "1'b1",
        "= issue && is_last_pass",
    ),
    Mutant("a slot is overwritten", "fixed_linear", "level_q != LEVEL_WIDTH'(SLOTS)", "1'b1"),
    Mutant(
        "the slots are written past their end",
        "fixed_linear",
        "write_q == SLOT_WIDTH'(SLOTS - 1)",
        "1'b0",
    ),
    Mutant(
        "the slots are read past their end",
        "fixed_linear",
        "read_q == SLOT_WIDTH'(SLOTS - 1)",
        "1'b0",
    ),
    Mutant("no beat goes round the memory", "fifo", "store && write_q == ahead", "1'b0"),
    Mutant(
        "a beat overtakes those in the slots", "fifo", "has_more ? slot : data_in_0", "data_in_0"
    ),
    Mutant(
        "a beat that finds no other waits",
        "fifo",
        "count_q == '0",
        "1'b0",
        "is_alone   = count_q == '0",
    ),
    Mutant("the slot is not read ahead", "fifo", "slots[ahead]", "slots[read_q]"),
    Mutant("a beat is repeated", "fifo", "fetch", "1'b0", "if (fetch) read_q"),
    Mutant("the queue is written past its end", "fifo", "write_q == LAST_SLOT", "1'b0"),
    Mutant(
        "the queue turns one slot early",
        "fifo",
        "read_q == LAST_SLOT",
        "read_q == LAST_SLOT - 1'b1",
    ),
    Mutant(
        "gearbox lanes are swapped",
        "gearbox",
        "data_in_0[unit*UNIT_WIDTH+:UNIT_WIDTH]",
        "data_in_0[(IN_UNITS-1-unit)*UNIT_WIDTH+:UNIT_WIDTH]",
    ),
    Mutant(
        "a beat lands behind the one that left",
        "gearbox",
        "count_left",
        "count_q",
        "count_left == COUNT_WIDTH'(slot",
    ),
    Mutant(
        "a joined pair is crossed",
        "stream_join",
        "{data_in_1, data_in_0}",
        "{data_in_0, data_in_1}",
    ),
    Mutant(
        "banks are not changed when one is full",
        "stream_reorder",
        "if (filled) write_half_q <= !write_half_q;",
        "",
    ),
    Mutant(
        "banks are not changed when one is empty",
        "stream_reorder",
        "if (emptied) read_half_q <= !read_half_q;",
        "",
    ),
    Mutant(
        "a bank is full one beat early",
        "stream_reorder",
        "write_q == ADDRESS_WIDTH'(IN_BEATS - 1)",
        "write_q == ADDRESS_WIDTH'(IN_BEATS - 2)",
    ),
    Mutant(
        "the last order is the first",
        "stream_reorder",
        "order[read_next]",
        "order[read_next == READ_WIDTH'(OUT_BEATS - 1) ? '0 : read_next]",
    ),
    Mutant(
        "the lanes of the last beat go first",
        "stream_reorder",
        "lanes[write_next]",
        "lanes[ADDRESS_WIDTH'(IN_BEATS - 1) - write_next]",
    ),
    Mutant(
        "lanes come from other banks",
        "stream_reorder",
        "order_q[LANES*BANK_WIDTH-1:0]",
        "~order_q[LANES*BANK_WIDTH-1:0]",
    ),
    Mutant(
        "the lines turn one early",
        "sliding_window",
        "write_q == PLACE_WIDTH'(SLOTS - 1)",
        "write_q == PLACE_WIDTH'(SLOTS - 2)",
    ),
    Mutant(
        "the padding on the right begins late",
        "sliding_window",
        "column_q >= POSITION_WIDTH'(COLUMNS)",
        "column_q > POSITION_WIDTH'(COLUMNS)",
    ),
    Mutant(
        "rows are freed before they have come",
        "sliding_window",
        "ends_window_row && level_q < freed_q",
        "1'b0",
    ),
    Mutant(
        "the ring of lines is a slot short",
        "sliding_window",
        "(PLACE_WIDTH + 1)'(step - SLOTS)",
        "(PLACE_WIDTH + 1)'(step - SLOTS + 1)",
    ),
    Mutant(
        "a window row above the image frees a whole stride",
        "sliding_window",
        "LEVEL_WIDTH'(CROSSED * ROW_BEATS)",
        "LEVEL_WIDTH'(STRIDE_DIM_1 * ROW_BEATS)",
    ),
    Mutant(
        "the next image begins where the last one did",
        "sliding_window",
        "if (last_top) first_place_q <= next_first_place;",
        "",
    ),
    Mutant(
        "a channel too few",
        "sliding_window",
        "channel_q == CHANNEL_WIDTH'(BEATS - 1)",
        "channel_q == CHANNEL_WIDTH'(BEATS - 2 + 32'(BEATS == 1))",
    ),
]

TABLES = [
    Mutant(
        "the weights end one word early",
        "rom_source",
        "address_q == ADDRESS_WIDTH'(DEPTH - 1)",
        "address_q == ADDRESS_WIDTH'(DEPTH - 2 + 32'(DEPTH == 1))",
    ),
    Mutant(
        "the weights have no end", "rom_source", "address_q == ADDRESS_WIDTH'(DEPTH - 1)", "1'b0"
    ),
    Mutant(
        "the weights start one word late",
        "rom_source",
        "address_q        <= '0;",
        "address_q <= ADDRESS_WIDTH'(1);",
    ),
    Mutant(
        "the last word is the first",
        "rom_source",
        "words[address_q]",
        "words[address_q == ADDRESS_WIDTH'(DEPTH - 1) ? '0 : address_q]",
    ),
    *(
        Mutant(
            f"table entry {what} is another",
            "fixed_lut",
            "entries[data_in_0[lane*IN_WIDTH+:IN_WIDTH]]",
            "entries[data_in_0[lane*IN_WIDTH+:IN_WIDTH] ^ {IN_WIDTH {"
            f"data_in_0[lane*IN_WIDTH+:IN_WIDTH] == {code}}}}}]",
        )
        for what, code in (
            ("0", "'0"),
            ("of the highest code", "{1'b0, {(IN_WIDTH-1) {1'b1}}}"),
            ("of the lowest code", "{1'b1, {(IN_WIDTH-1) {1'b0}}}"),
            ("of all ones", "'1"),
        )
    ),
    Mutant(
        "the highest lane reads entry 7 wrong",
        "fixed_lut",
        "entries[data_in_0[lane*IN_WIDTH+:IN_WIDTH]]",
        "entries[data_in_0[lane*IN_WIDTH+:IN_WIDTH] ^ {IN_WIDTH {lane == LANES - 1 && "
        "data_in_0[lane*IN_WIDTH+:IN_WIDTH] == IN_WIDTH'(7)}}]",
    ),
]

HANDSHAKES = [
    Mutant(
        "ready is stuck at zero",
        "skid_buffer",
        "ready_q",
        "1'b0",
        "data_in_0_ready  = ready_q",
    ),
    Mutant(
        "ready is stuck at one",
        "skid_buffer",
        "ready_q",
        "1'b1",
        "data_in_0_ready  = ready_q",
    ),
    Mutant("a held beat is overtaken", "skid_buffer", "ready_q ? data_in_0 : held_q", "data_in_0"),
    Mutant("a held beat is lost", "skid_buffer", "!ready_q || data_in_0_valid", "data_in_0_valid"),
    Mutant(
        "an offer is withdrawn",
        "skid_buffer",
        "out_valid_q",
        "out_valid_q && data_out_0_ready",
        "data_out_0_valid = out_valid_q",
    ),
    Mutant(
        "an offer is withdrawn under a stall",
        "skid_buffer",
        "out_valid_q",
        "out_valid_q && ready_q",
        "data_out_0_valid = out_valid_q",
    ),
    Mutant(
        "an offer changes under a stall",
        "skid_buffer",
        "out_q",
        "ready_q ? out_q : held_q",
        "data_out_0       = out_q",
    ),
    Mutant(
        "a full queue takes more",
        "fifo",
        "count_q != COUNT_WIDTH'(DEPTH)",
        "count_q != COUNT_WIDTH'(DEPTH + 1)",
    ),
    Mutant("an empty queue gives", "fifo", "count_q != '0", "1'b1"),
    Mutant("the last beat waits for another", "fifo", "count_q != '0", "count_q > COUNT_WIDTH'(1)"),
    Mutant("a beat that comes while one leaves counts twice", "fifo", "push && !pop", "push"),
    Mutant("a beat that leaves while one comes does not count", "fifo", "pop && !push", "1'b0"),
    Mutant(
        "a branch takes twice",
        "stream_fork",
        "data_in_0_valid && data_in_0_ready",
        "data_in_0_valid",
    ),
    Mutant("one branch runs ahead", "stream_fork", "&branch_ready", "|branch_ready"),
    Mutant("only the first branch is asked", "stream_fork", "&branch_ready", "branch_ready[0]"),
    Mutant(
        "join does not wait",
        "stream_join",
        "data_in_0_valid && data_in_1_valid",
        "data_in_0_valid || data_in_1_valid",
    ),
    Mutant(
        "join takes the first alone",
        "stream_join",
        "data_out_0_ready && data_in_1_valid",
        "data_out_0_ready",
    ),
    Mutant(
        "join takes the second alone",
        "stream_join",
        "data_out_0_ready && data_in_0_valid",
        "data_out_0_ready",
    ),
    Mutant(
        "the gearbox overflows",
        "gearbox",
        "count_q <= COUNT_WIDTH'(CAPACITY - IN_UNITS)",
        "count_q <= COUNT_WIDTH'(CAPACITY - IN_UNITS + 1)",
    ),
    Mutant(
        "the gearbox gives too soon",
        "gearbox",
        "count_q >= COUNT_WIDTH'(OUT_UNITS)",
        "count_q >= COUNT_WIDTH'(OUT_UNITS - 1) && count_q != '0",
    ),
    Mutant(
        "the last beat of the gearbox stays",
        "gearbox",
        "count_q >= COUNT_WIDTH'(OUT_UNITS)",
        "count_q > COUNT_WIDTH'(OUT_UNITS)",
    ),
    Mutant("a full bank is overwritten", "stream_reorder", "full_q != 2'd2", "1'b1"),
    Mutant("the last tensor stays", "stream_reorder", "full_q != 2'd0", "full_q == 2'd2"),
    Mutant(
        "a full window buffer takes more",
        "sliding_window",
        "level_q != LEVEL_WIDTH'(SLOTS)",
        "1'b1",
    ),
    Mutant(
        "constants are not taken together",
        "fixed_batch_norm",
        "skid_ready && data_in_0_valid && weight_valid",
        "skid_ready && weight_valid",
    ),
    Mutant(
        "a read is lost under a stall",
        "fixed_lut",
        "read_valid_q <= data_in_0_valid;",
        "read_valid_q <= data_in_0_valid && data_out_0_ready;",
    ),
]

PACE = [
    Mutant(
        "every second cycle is lost",
        "skid_buffer",
        "ready_q",
        "ready_q && !out_valid_q",
        "data_in_0_ready  = ready_q",
    ),
    Mutant(
        "the last slot of the queue is not used",
        "fifo",
        "count_q != COUNT_WIDTH'(DEPTH)",
        "count_q < COUNT_WIDTH'(DEPTH - 1)",
    ),
    Mutant(
        "the gearbox waits until it is empty",
        "gearbox",
        "count_q <= COUNT_WIDTH'(CAPACITY - IN_UNITS)",
        "count_q == '0 || count_q < COUNT_WIDTH'(OUT_UNITS)",
    ),
    Mutant(
        "a vector waits until all of it has come",
        "fixed_linear",
        "32'(in_fold_q) < 32'(level_q)",
        "32'(level_q) == SLOTS",
    ),
    Mutant(
        "a bubble after every vector",
        "fixed_linear",
        "level_q != LEVEL_WIDTH'(SLOTS)",
        "level_q != LEVEL_WIDTH'(SLOTS) && !(is_last && is_last_pass)",
    ),
    Mutant(
        "a bank waits until both are empty", "stream_reorder", "full_q != 2'd2", "full_q == 2'd0"
    ),
    Mutant(
        "the last line is not used",
        "sliding_window",
        "level_q != LEVEL_WIDTH'(SLOTS)",
        "level_q != LEVEL_WIDTH'(SLOTS - 1)",
    ),
    Mutant(
        "padding comes before the image has begun",
        "sliding_window",
        "level_q != '0",
        "1'b1",
        "is_pad ? level_q != '0",
    ),
]

RESETS = [
    *no_reset("fifo", zeroed("write_q"), zeroed("read_q", "  "), zeroed("count_q")),
    *no_reset(
        "skid_buffer",
        zeroed("out_valid_q", " ", "1'b0"),
        zeroed("ready_q", "     ", "1'b1", "out_valid_q <= 1'b0;\n      "),
    ),
    *no_reset("gearbox", ("count_q", "if (rst) count_q <= '0;", "")),
    *no_reset(
        "rom_source", zeroed("data_out_0_valid", " ", "1'b0"), zeroed("address_q", "        ")
    ),
    *no_reset(
        "stream_reorder",
        ("write_q", "if (rst) write_next = '0;", ""),
        ("read_q", "if (rst) read_next = '0;", ""),
        zeroed("read_valid_q", " ", "1'b0"),
        zeroed("write_half_q", " ", "1'b0"),
        zeroed("read_half_q", "  ", "1'b0"),
        zeroed("full_q", "       "),
    ),
    *no_reset(
        "fixed_linear",
        zeroed("write_q", "    "),
        zeroed("read_q", "     "),
        zeroed("base_q", "     "),
        zeroed("level_q", "    "),
        zeroed("in_fold_q", "  "),
        zeroed("out_fold_q", " "),
        ("acc_done_q", "if (rst) acc_done_q <= 1'b0;", ""),
    ),
    *no_reset("fixed_dot_product", ("tags_q", "if (rst) tags_q <= '0;", "")),
    *no_reset(
        "sliding_window",
        zeroed("level_q", "         "),
        zeroed("freed_q", "         ", "freed_at(-POSITION_WIDTH'(PADDING_DIM_1))"),
        zeroed("row_q", "           ", "-POSITION_WIDTH'(PADDING_DIM_1)"),
        zeroed("top_q", "           ", "-POSITION_WIDTH'(PADDING_DIM_1)"),
        zeroed("column_q", "        ", "-POSITION_WIDTH'(PADDING_DIM_0)"),
        zeroed("left_q", "          ", "-POSITION_WIDTH'(PADDING_DIM_0)"),
        zeroed("place_q", "         ", "PLACE_WIDTH'(FIRST_PLACE)"),
        zeroed("offset_q", "        ", "OFFSET_WIDTH'(FIRST_OFFSET)"),
        zeroed("kernel_row_q", "    "),
        zeroed("kernel_column_q", " "),
        zeroed("channel_q", "       "),
        zeroed("read_valid_q", " ", "1'b0"),
        zeroed("beat_valid_q", " ", "1'b0"),
    ),
    *no_reset(
        "fixed_pool",
        zeroed("beat_q", "  "),
        zeroed("pixel_q"),
        zeroed("left_q", " ", "-POSITION_WIDTH'(PADDING_DIM_0)", "if (rst) begin\n        "),
        zeroed("top_q", "  ", "-POSITION_WIDTH'(PADDING_DIM_1)"),
    ),
    *no_reset("fixed_lut", ("read_valid_q", "if (rst) read_valid_q <= 1'b0;", "")),
]

TILES = [
    Mutant(
        "matrices are written over each other",
        "tile_buffer",
        "if (filled) write_half_q <= !write_half_q;",
        "",
    ),
    Mutant(
        "the first matrix is read for ever",
        "tile_buffer",
        "if (emptied) read_half_q <= !read_half_q;",
        "",
    ),
    Mutant(
        "rows of a tile lie behind each other",
        "tile_buffer",
        "is_row_end && !is_last_bank ? group_q : write_up",
        "write_up",
    ),
    Mutant(
        "a matrix is read once less",
        "tile_buffer",
        "REPEAT_WIDTH'(REPEATS - 1)",
        "REPEAT_WIDTH'(REPEATS - 2)",
    ),
    Mutant(
        "tiles across the rows are read along them",
        "tile_buffer",
        "TILE_WIDTH'(ROW_BEATS)",
        "TILE_WIDTH'(1)",
    ),
    Mutant(
        "the next column of tiles is the same",
        "tile_buffer",
        "TILE_WIDTH'(TILES - ROW_BEATS - 1)",
        "TILE_WIDTH'(TILES - ROW_BEATS)",
    ),
    Mutant(
        "rows go to every bank",
        "tile_buffer",
        "bank_q == BANK_WIDTH'(bank)",
        "1'b1",
    ),
    Mutant("a third matrix is taken", "tile_buffer", "full_q != 2'd2", "1'b1"),
    Mutant("the next matrix waits", "tile_buffer", "full_q != 2'd2", "full_q == 2'd0"),
    Mutant("a matrix is read before it is there", "tile_buffer", "full_q != 2'd0", "1'b1"),
    Mutant(
        "a tile that waits is lost",
        "tile_buffer",
        "if (enable) data_out_0_valid <= step;",
        "data_out_0_valid <= step;",
    ),
    Mutant(
        "a beat too many is kept",
        "stream_slice",
        "beat_q < BEAT_WIDTH'(FIRST + KEPT)",
        "beat_q <= BEAT_WIDTH'(FIRST + KEPT)",
    ),
    Mutant(
        "the beat before is kept",
        "stream_slice",
        "beat_q >= BEAT_WIDTH'(FIRST)",
        "beat_q >= BEAT_WIDTH'(FIRST - 1)",
    ),
    Mutant(
        "rows of a slice grow",
        "stream_slice",
        "beat_q == BEAT_WIDTH'(BEATS - 1)",
        "beat_q == BEAT_WIDTH'(BEATS)",
    ),
    Mutant("the turns are not changed", "stream_concat", "!turn_q", "turn_q"),
    Mutant(
        "a constant does not wait for its tensor",
        "stream_concat",
        "zero_valid || !WAITS",
        "1'b1",
        "skid_ready && is_one && (zero_valid || !WAITS",
    ),
    Mutant(
        "blocks are a beat longer",
        "stream_concat",
        "beat_q == last",
        "beat_q == last + 1'b1",
        "if (beat_q == last",
    ),
    Mutant(
        "rows of a table are a beat shorter",
        "fixed_embedding",
        "beat_q == BEAT_WIDTH'(BEATS - 1)",
        "beat_q == BEAT_WIDTH'(BEATS - 2)",
    ),
    Mutant("there are rows past the last", "fixed_embedding", "number < WIDTH'(ROWS)", "1'b1"),
    Mutant("a number leaves with its first beat", "fixed_embedding", "enable && is_last", "enable"),
    Mutant(
        "a row is read that no number asks for",
        "fixed_embedding",
        "read_valid_q <= number_valid;",
        "read_valid_q <= 1'b1;",
    ),
    *no_reset("fixed_embedding", zeroed("read_valid_q", " ", "1'b0"), zeroed("beat_q", "       ")),
    *no_reset("stream_slice", ("beat_q", "if (rst) beat_q <= '0;", "")),
    *no_reset("stream_concat", zeroed("beat_q"), zeroed("turn_q", " ", "1'b0")),
    *no_reset(
        "tile_buffer",
        zeroed("write_q", "          "),
        zeroed("group_q", "          "),
        zeroed("beat_q", "           "),
        zeroed("bank_q", "           "),
        zeroed("read_q", "           "),
        zeroed("repeat_q", "         "),
        zeroed("full_q", "           "),
        zeroed("write_half_q", "     ", "1'b0"),
        zeroed("read_half_q", "      ", "1'b0"),
        zeroed("data_out_0_valid", " ", "1'b0"),
    ),
]

MUTANTS = [*TILES, *VALUES, *ORDER, *TABLES, *HANDSHAKES, *PACE, *RESETS]
"""A mutant that stands here twice, by its name, is written for two ways of saying the same."""

_CHOICE = "mutation::chosen[0]"
_PACKAGE = "package mutation;\n  logic [15:0] chosen[1];\nendpackage\n"
_READ = '  initial $readmemh("mem/mutant.mem", mutation::chosen);\n'


def with_mutants(directory, mutants=MUTANTS):
    """Build the choice between `mutants` into the RTL of `directory`; the numbers, by name."""
    numbers = {}
    for path in sorted((directory / "rtl").glob("*.sv")):
        text = path.read_text()
        places = {}
        for mutant in (m for m in mutants if m.module == path.stem):
            span = mutant.span(text)
            if span is not None:
                assert mutant.what not in numbers, f"{mutant.what} is there twice"
                numbers[mutant.what] = len(numbers) + 1
                places.setdefault(span, []).append(mutant)
        following = len(text)
        for (start, end), here in sorted(places.items(), reverse=True):
            assert end <= following, f"{here[0].what} overlaps another mutant"
            following = start
            text = text[:start] + _choice(text[start:end], here, numbers) + text[end:]
        if path.stem == "skid_buffer":  # a module that every design has reads the number
            text = text.replace("\nendmodule", f"\n{_READ}\nendmodule")
        path.write_text(text)
    (directory / "rtl" / "a_mutation.sv").write_text(_PACKAGE)
    choose(directory, 0)
    return numbers


def _choice(old, mutants, numbers):
    for mutant in mutants:
        is_on = f"{_CHOICE} == 16'd{numbers[mutant.what]}"
        if mutant.is_statement:
            old = f"if ({is_on}) begin {mutant.new} end else begin {old} end"
        else:
            old = f"({is_on} ? ({mutant.new}) : ({old}))"
    return old


def choose(directory, number):
    """Turn on the mutant of that number, 0 for none."""
    (directory / "mem" / "mutant.mem").write_text(f"{number:04x}\n")


def zoo():
    """A residual block, and beside it a network with every kind of buffer and table."""
    builder = Builder("top")
    residual_block(builder, "data_in_0", "data_out_0")
    rng = np.random.default_rng(5)
    pairs = ((3, 3), (1, 1), (1, 1))
    x = builder.input("data_in_1", Stream((5, 6, 2), 1, BYTE))
    conv = Conv2d(builder.stream(x), *pairs, weights=random_weights(3, 18, 3), format=BYTE, lanes=3)
    y = builder.add("conv", conv, x)
    one_lane, three_lanes = Stream((5, 6, 3), 1, BYTE), Stream((5, 6, 3), 3, BYTE)
    scale, shift = rng.integers(8, 32, 3), rng.integers(-32, 32, 3)
    y = builder.add("norm", BatchNorm(one_lane, BYTE, scale, shift, BYTE, BYTE), y)
    y = builder.add("queue", Fifo(one_lane, 5), y)
    y = builder.add("tanh", Lut(three_lanes, Fixed(8, 6), np.tanh), y)
    image = Stream((5, 6, 3), 1, Fixed(8, 6))  # pooling leaves the last row out
    best = builder.add("best", MaxPool(image, (2, 2), (2, 2), format=image.format), y)
    mean = builder.add("mean", AvgPool(image, (2, 2), (2, 2), format=image.format), y)
    small = builder.stream(best)
    edges = AvgPool(small, (2, 2), (1, 1), (1, 1), format=BYTE, counts_padding=False)
    builder.output("data_out_2", builder.add("edges", edges, best))
    y = builder.add("product", Mul(small, small, BYTE), best, mean)
    order = tuple(int(k) for k in rng.permutation(18))
    y = builder.add("order", Reorder(Stream((18,), 2, BYTE), order, (18,)), y)
    head = Linear(Stream((18,), 3, BYTE), random_weights(5, 18, 4), BYTE, 1)
    builder.output("data_out_1", builder.add("head", head, y))
    _products(builder)
    numbers = builder.input("data_in_6", Stream((5,), 1, Fixed(3, 0, is_signed=False)))
    rows = Embedding(builder.stream(numbers), rng.integers(-99, 99, (6, 6)), BYTE, 2)
    builder.output("data_out_5", builder.add("words", rows, numbers))
    z = builder.input("data_in_2", Stream((18,), 2, BYTE))
    builder.output("data_out_3", builder.add("deep", Fifo(builder.stream(z), 256), z))
    return builder.build()


def _products(builder):
    """(x @ y.T) @ z for two heads, beside the rest."""
    x, y, z = (
        builder.input(f"data_in_{k}", Stream((2, rows, 4), 2, BYTE))
        for k, rows in ((3, 3), (4, 6), (5, 6))
    )
    scores = Matmul(builder.stream(x), builder.stream(y), BYTE, True, 2)
    s = builder.add("scores", scores, x, y)
    mixed = Matmul(Stream((2, 3, 6), 3, BYTE), builder.stream(z), BYTE, False, 2)
    y = builder.add("mixed", mixed, s, z)
    one, token = Stream((1, 4), 2, BYTE), np.array([5, -7, 11, 3])
    tokens = Stream((6, 4), 2, BYTE)
    y = builder.add("token", Concat(tokens, one, (24, 4), (7, 4), True, token), y)
    builder.output("data_out_4", builder.add("part", Slice(Stream((28,), 2, BYTE), 2, (24,)), y))


def module_names(text):
    """Modules that `text` instantiates."""
    return set(re.findall(r"^  (\w+) #\($", text, re.M))
