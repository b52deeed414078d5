// Casts fixed-point elements to another format: rounds, then brings into the range.
// Combinational. The only place where this library rounds or saturates.
`default_nettype none

module fixed_cast #(
    parameter int DATA_IN_0_PRECISION_0       = 16,    // width of an input element, bits, 1 or more
    parameter int DATA_IN_0_PRECISION_1       = 8,     // its fractional bits, any sign
    parameter bit DATA_IN_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_OUT_0_PRECISION_0      = 8,     // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1      = 4,     // its fractional bits, any sign
    parameter bit DATA_OUT_0_IS_SIGNED        = 1'b1,  // two's complement
    // 0 nearest, ties to even; 1 down; 2 toward zero; 3 nearest, ties away from zero
    parameter int DATA_OUT_0_ROUNDING         = 0,
    // 0 saturate; 1 saturate, and the lowest code is not used; 2 wrap
    parameter int DATA_OUT_0_OVERFLOW         = 0,
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 1,     // elements per beat, 1 or more
    // 1: the caller has already added half an output step to every element (in a bias, say);
    // for rounding 0 alone
    parameter bit IS_HALF_ADDED               = 1'b0
) (
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    output logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || DATA_OUT_0_PRECISION_0 < 1
      || DATA_IN_0_PARALLELISM_DIM_0 < 1) begin : g_refuse_size
    $error("fixed_cast: widths and lanes must be 1 or more, got %0d, %0d and %0d",
           DATA_IN_0_PRECISION_0, DATA_OUT_0_PRECISION_0, DATA_IN_0_PARALLELISM_DIM_0);
  end
  if (DATA_OUT_0_ROUNDING < 0 || DATA_OUT_0_ROUNDING > 3
      || DATA_OUT_0_OVERFLOW < 0 || DATA_OUT_0_OVERFLOW > 2) begin : g_refuse_mode
    $error("fixed_cast: no rounding %0d with overflow %0d",
           DATA_OUT_0_ROUNDING, DATA_OUT_0_OVERFLOW);
  end
  if (DATA_OUT_0_OVERFLOW == 1
      && (DATA_OUT_0_PRECISION_0 < 2 || !DATA_OUT_0_IS_SIGNED)) begin : g_refuse_narrow
    $error("fixed_cast: a narrow range needs a sign and 2 bits, got %0d bits",
           DATA_OUT_0_PRECISION_0);
  end
`endif

  localparam int IN_WIDTH = DATA_IN_0_PRECISION_0;
  localparam int OUT_WIDTH = DATA_OUT_0_PRECISION_0;
  // Widths as signed numbers.
  localparam int X_WIDTH = IN_WIDTH + (DATA_IN_0_IS_SIGNED ? 0 : 1);
  localparam int Y_WIDTH = OUT_WIDTH + (DATA_OUT_0_IS_SIGNED ? 0 : 1);
  // Bits rounded away. Any element is below a quarter of a step that has two bits more than it: a
  // still coarser step changes nothing.
  localparam int LOST = DATA_IN_0_PRECISION_1 - DATA_OUT_0_PRECISION_1;
  localparam int DROPPED = LOST > X_WIDTH + 1 ? X_WIDTH + 1 : LOST;
  localparam int GAINED = DROPPED < 0 ? -DROPPED : 0;
  // One bit of growth: rounding up may carry out of the top.
  localparam int WIDE_0 = X_WIDTH + GAINED > Y_WIDTH ? X_WIDTH + GAINED : Y_WIDTH;
  localparam int WIDE = (WIDE_0 > DROPPED ? WIDE_0 : DROPPED) + 1;

  localparam logic [OUT_WIDTH-1:0] TOP_BIT = OUT_WIDTH'(1) << (OUT_WIDTH - 1);
  localparam logic [OUT_WIDTH-1:0] HIGHEST = DATA_OUT_0_IS_SIGNED ? ~TOP_BIT : '1;
  localparam logic [OUT_WIDTH-1:0] LOWEST =
      !DATA_OUT_0_IS_SIGNED ? '0 : TOP_BIT | OUT_WIDTH'(DATA_OUT_0_OVERFLOW == 1);

  for (genvar lane = 0; lane < DATA_IN_0_PARALLELISM_DIM_0; lane++) begin : g_lane
    logic signed [WIDE-1:0] wide, rounded;
    logic [OUT_WIDTH-1:0] low_bits;

    if (DATA_IN_0_IS_SIGNED) begin : g_signed
      assign wide = WIDE'($signed(data_in_0[lane*IN_WIDTH+:IN_WIDTH]));
    end else begin : g_unsigned
      assign wide = WIDE'(data_in_0[lane*IN_WIDTH+:IN_WIDTH]);
    end

    if (DROPPED <= 0) begin : g_shift
      assign rounded = wide <<< GAINED;
    end else if (DATA_OUT_0_ROUNDING == 0) begin : g_nearest_even
      localparam logic signed [WIDE-1:0] HALF = IS_HALF_ADDED ? '0 : WIDE'(1) << (DROPPED - 1);
      logic signed [WIDE-1:0] raised, floored;
      logic is_tie;
      // v + 1/2 is whole exactly when v was half-way: then the even neighbour is the one below
      // with its last bit cleared.
      assign raised  = wide + HALF;
      assign is_tie  = raised[DROPPED-1:0] == '0;
      assign floored = raised >>> DROPPED;
      assign rounded = {floored[WIDE-1:1], floored[0] && !is_tie};
    end else if (DATA_OUT_0_ROUNDING == 1) begin : g_down
      assign rounded = wide >>> DROPPED;
    end else begin : g_by_sign
      // Adding just less than a whole step raises a negative number towards zero; adding half a
      // step, and just less to a negative one, rounds ties away from zero.
      localparam logic signed [WIDE-1:0] HALF = WIDE'(1) << (DROPPED - 1);
      localparam logic signed [WIDE-1:0] ABOVE = DATA_OUT_0_ROUNDING == 2 ? '0 : HALF;
      localparam logic signed [WIDE-1:0] BELOW =
          (DATA_OUT_0_ROUNDING == 2 ? HALF + HALF : HALF) - WIDE'(1);
      logic signed [WIDE-1:0] raised;
      assign raised  = wide + (wide < 0 ? BELOW : ABOVE);
      assign rounded = raised >>> DROPPED;
    end

    assign low_bits = rounded[OUT_WIDTH-1:0];
    if (DATA_OUT_0_OVERFLOW == 2) begin : g_wrap
      wire logic unused_ok = &{1'b0, rounded[WIDE-1:OUT_WIDTH]};
      assign data_out_0[lane*OUT_WIDTH+:OUT_WIDTH] = low_bits;
    end else begin : g_saturate
      // It fits when the bits above repeat the sign; else the nearest end of the range.
      logic sign, is_in_range;
      assign sign = rounded[WIDE-1];
      if (DATA_OUT_0_IS_SIGNED) begin : g_range
        assign is_in_range = rounded[WIDE-1:OUT_WIDTH-1] == {(WIDE - OUT_WIDTH + 1) {sign}}
            && !(DATA_OUT_0_OVERFLOW == 1 && low_bits == TOP_BIT);
      end else begin : g_range
        assign is_in_range = rounded[WIDE-1:OUT_WIDTH] == '0;
      end
      assign data_out_0[lane*OUT_WIDTH+:OUT_WIDTH] =
          is_in_range ? low_bits : sign ? LOWEST : HIGHEST;
    end
  end

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (IS_HALF_ADDED && (DATA_OUT_0_ROUNDING != 0 || LOST > DROPPED)) begin : g_refuse_half
    $error("fixed_cast: no half is added for rounding %0d of %0d bits", DATA_OUT_0_ROUNDING, LOST);
  end
`endif

endmodule

`default_nettype wire
