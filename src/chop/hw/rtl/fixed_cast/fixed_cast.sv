// Casts fixed-point elements to another format: rounds half to even, then saturates.
// Combinational. The only place where this library rounds or saturates.
`default_nettype none

module fixed_cast #(
    parameter int DATA_IN_0_PRECISION_0       = 16,  // width of an input element, bits, 2 or more
    parameter int DATA_IN_0_PRECISION_1       = 8,   // its fractional bits, any sign
    parameter int DATA_OUT_0_PRECISION_0      = 8,   // width of an output element, bits, 2 or more
    parameter int DATA_OUT_0_PRECISION_1      = 4,   // its fractional bits, any sign
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 1,   // elements per beat, 1 or more
    // 1: the caller has already added half an output step to every element (in a bias, say)
    parameter bit IS_HALF_ADDED               = 1'b0
) (
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    output logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0
);

  localparam int IN_WIDTH = DATA_IN_0_PRECISION_0;
  localparam int OUT_WIDTH = DATA_OUT_0_PRECISION_0;
  localparam int DROPPED = DATA_IN_0_PRECISION_1 - DATA_OUT_0_PRECISION_1;  // bits rounded away
  localparam int GAINED = DROPPED < 0 ? -DROPPED : 0;
  // One bit of growth: rounding up may carry out of the top.
  localparam int WIDE = (IN_WIDTH + GAINED > OUT_WIDTH ? IN_WIDTH + GAINED : OUT_WIDTH) + 1;

  for (genvar lane = 0; lane < DATA_IN_0_PARALLELISM_DIM_0; lane++) begin : g_lane
    logic signed [WIDE-1:0] wide, rounded;

    assign wide = WIDE'($signed(data_in_0[lane*IN_WIDTH+:IN_WIDTH]));

    if (DROPPED > 0) begin : g_round
      localparam logic signed [WIDE-1:0] HALF =
          IS_HALF_ADDED ? '0 : WIDE'(64'sd1 <<< (DROPPED - 1));
      logic signed [WIDE-1:0] raised, floored;
      logic is_tie;
      // v + 1/2 is whole exactly when v was half-way: then the even neighbour is the one below
      // with its last bit cleared.
      assign raised  = wide + HALF;
      assign is_tie  = raised[DROPPED-1:0] == '0;
      assign floored = raised >>> DROPPED;
      assign rounded = {floored[WIDE-1:1], floored[0] && !is_tie};
    end else begin : g_shift
      assign rounded = wide <<< GAINED;
    end

    // It fits when the bits above the output's sign repeat it; else the nearest end of the range.
    logic sign, is_in_range;
    assign sign = rounded[WIDE-1];
    assign is_in_range = rounded[WIDE-1:OUT_WIDTH-1] == {(WIDE - OUT_WIDTH + 1) {sign}};
    assign data_out_0[lane*OUT_WIDTH+:OUT_WIDTH] =
        is_in_range ? rounded[OUT_WIDTH-1:0] : {sign, {(OUT_WIDTH - 1) {!sign}}};
  end

  initial begin
    if (IN_WIDTH + GAINED > 62 || OUT_WIDTH < 2) begin
      $error("fixed_cast: widths must lie in 2..62, got %0d -> %0d (instance %m)",
             IN_WIDTH + GAINED, OUT_WIDTH);
      $finish;
    end
  end

endmodule

`default_nettype wire
