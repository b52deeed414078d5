// Every lane clipped to two bounds, then cast: LOW where x < LOW_AT, HIGH where x > HIGH_AT.
// Latency 1 cycle, throughput 1 beat per cycle.
`default_nettype none

module fixed_clamp #(
    parameter int DATA_IN_0_PRECISION_0       = 8,  // width of an input element, bits, 1 or more
    parameter int DATA_IN_0_PRECISION_1       = 4,  // its fractional bits
    parameter bit DATA_IN_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_OUT_0_PRECISION_0      = 8,  // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1      = 4,  // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED        = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING         = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW         = 0,  // as in fixed_cast
    parameter longint LOW_AT                  = 0,  // least input code that stays, at most HIGH_AT + 1
    parameter longint HIGH_AT                 = 96,  // largest input code that stays
    parameter longint LOW                     = 0,  // output code of smaller numbers
    parameter longint HIGH                    = 96,  // output code of larger numbers
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 1   // elements per beat, 1 or more
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,
    output      logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || DATA_OUT_0_PRECISION_0 < 1
      || DATA_IN_0_PARALLELISM_DIM_0 < 1) begin : g_refuse_size
    $error("fixed_clamp: widths and lanes must be 1 or more, got %0d, %0d and %0d",
           DATA_IN_0_PRECISION_0, DATA_OUT_0_PRECISION_0, DATA_IN_0_PARALLELISM_DIM_0);
  end
  if (LOW_AT > HIGH_AT + 1) begin : g_refuse_bounds
    $error("fixed_clamp: LOW_AT must be at most HIGH_AT + 1, got %0d and %0d", LOW_AT, HIGH_AT);
  end
`endif

  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int IN_WIDTH = DATA_IN_0_PRECISION_0;
  localparam int OUT_WIDTH = DATA_OUT_0_PRECISION_0;

  logic [LANES*OUT_WIDTH-1:0] cast, result;

  fixed_cast #(
      .DATA_IN_0_PRECISION_0      (IN_WIDTH),
      .DATA_IN_0_PRECISION_1      (DATA_IN_0_PRECISION_1),
      .DATA_IN_0_IS_SIGNED        (DATA_IN_0_IS_SIGNED),
      .DATA_OUT_0_PRECISION_0     (OUT_WIDTH),
      .DATA_OUT_0_PRECISION_1     (DATA_OUT_0_PRECISION_1),
      .DATA_OUT_0_IS_SIGNED       (DATA_OUT_0_IS_SIGNED),
      .DATA_OUT_0_ROUNDING        (DATA_OUT_0_ROUNDING),
      .DATA_OUT_0_OVERFLOW        (DATA_OUT_0_OVERFLOW),
      .DATA_IN_0_PARALLELISM_DIM_0(LANES)
  ) u_fixed_cast (
      .data_in_0 (data_in_0),
      .data_out_0(cast)
  );

  for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
    logic signed [63:0] x;
    logic sign, is_low, is_high;
    assign sign    = DATA_IN_0_IS_SIGNED && data_in_0[lane*IN_WIDTH+IN_WIDTH-1];
    assign x       = 64'($signed({sign, data_in_0[lane*IN_WIDTH+:IN_WIDTH]}));
    assign is_low  = x < LOW_AT;
    assign is_high = x > HIGH_AT;
    assign result[lane*OUT_WIDTH+:OUT_WIDTH] = is_low ? OUT_WIDTH'(LOW)
        : is_high ? OUT_WIDTH'(HIGH) : cast[lane*OUT_WIDTH+:OUT_WIDTH];
  end

  skid_buffer #(
      .DATA_WIDTH(LANES * OUT_WIDTH)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (result),
      .data_in_0_valid (data_in_0_valid),
      .data_in_0_ready (data_in_0_ready),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
